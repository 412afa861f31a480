//! The layouts of the releases in compat-matrix's cache.

use super::{DeviceApi, Field, Fifo, Layout, ListPart, Work};
use crate::testing::{cached_library, releases};

/// Returns the layout of a release in the cache.
fn layout(release: &str) -> Option<Layout> {
    let path = cached_library(release)?;
    Some(Layout::of(&path).unwrap_or_else(|error| panic!("NCCL {release}: {error}")))
}

/// Returns a release's second and third number.
fn numbers(release: &str) -> (u32, u32) {
    let mut numbers = release.split('.').skip(1).map(|n| n.parse().expect("a number"));
    (numbers.next().expect("a minor number"), numbers.next().expect("a patch number"))
}

#[test]
fn every_cached_release_has_a_complete_layout_of_its_generation() {
    for release in releases() {
        let Some(layout) = layout(&release) else { continue };
        let (minor, _) = numbers(&release);
        assert_eq!(matches!(layout.work, Work::Lists(_)), minor < 22, "NCCL {release}");
        let has_arrays = matches!(layout.connection.fifo, Fifo::Arrays { .. });
        assert_eq!(has_arrays, minor < 20, "NCCL {release}");
        assert_eq!(layout.communicator.p2p_chunk.is_some(), minor >= 19, "NCCL {release}");
        assert_eq!(layout.connection.step_size.is_some(), minor >= 21, "NCCL {release}");
        let consumes = layout.communicator.work_consumed.is_some();
        assert_eq!(consumes, (22..=26).contains(&minor), "NCCL {release}");
        assert_eq!(layout.communicator.profiler.is_some(), minor >= 26, "NCCL {release}");
        let ring = layout.communicator.profiler.as_ref().and_then(|profiler| profiler.ring);
        assert_eq!(ring, (minor >= 27).then_some(1024), "NCCL {release}");
        assert_eq!(layout.channel.work_counter.is_some(), minor >= 26, "NCCL {release}");
        match &layout.work {
            Work::Lists(lists) => {
                let is_computed = matches!(lists.collective.part, ListPart::Computed { .. });
                assert_eq!(is_computed, minor < 20, "NCCL {release}");
            }
            Work::Batches(batches) => {
                let registers = batches.collective.net_registered.is_some();
                assert_eq!(registers, minor >= 24, "NCCL {release}");
                assert_eq!(batches.p2p.send.whole, minor < 24, "NCCL {release}");
                assert_eq!(batches.p2p.profiled.is_some(), numbers(&release) >= (26, 5), "NCCL {release}");
                assert_eq!(batches.broadcast.is_some(), minor >= 29, "NCCL {release}");
            }
        }
    }
}

#[test]
fn offsets_are_those_that_gdb_shows() {
    let offsets = |layout: &Layout| {
        let Work::Batches(batches) = &layout.work else { panic!("batches") };
        let collective = &batches.collective;
        (
            layout.communicator.channels,
            layout.communicator.abort_flag.offset,
            layout.channel.index.offset,
            layout.connection.step.offset,
            collective.size,
            collective.counts[0].offset,
            batches.batch.function,
        )
    };
    let function = |width| Field { offset: 0, size: 4, low: 17, width };
    for (release, expected) in [
        ("2.22.3", (64, 48, 24, 104, 64, 24, function(15))),
        ("2.23.4", (80, 56, 24, 104, 96, 56, function(15))),
        ("2.26.2", (96, 56, 24, 104, 96, 56, function(15))),
        ("2.29.7", (96, 48, 32, 104, 96, 56, function(15))),
        ("2.30.4", (96, 48, 32, 104, 128, 80, function(15))),
        ("2.32.3", (96, 48, 32, 104, 96, 56, function(11))),
    ] {
        let Some(layout) = layout(release) else { continue };
        assert_eq!(offsets(&layout), expected, "NCCL {release}");
    }
}

#[test]
fn bit_fields_lie_where_gdb_shows_them() {
    let Some(layout) = layout("2.32.3") else { return };
    let Work::Batches(batches) = layout.work else { panic!("batches") };
    let bits = |offset, size, low, width| Field { offset, size, low, width };
    assert_eq!(batches.collective.chunk_grains[1], bits(80, 8, 21, 21));
    assert_eq!(batches.collective.one_rank_per_node, Some(bits(0, 4, 30, 1)));
    assert_eq!(batches.p2p.receive.net_registered, bits(46, 1, 3, 1));
    assert_eq!(batches.batch.next_extends, bits(0, 4, 14, 1));
}

#[test]
fn the_device_api_lies_where_gdb_shows_it() {
    for (release, sizes, connections, stride) in [
        ("2.30.7", (96, 240, 88, 72), 144, None),
        ("2.31.2", (120, 248, 88, 72), 96, Some(96)),
        ("2.32.3", (120, 248, 96, 80), 96, Some(96)),
    ] {
        let Some(path) = cached_library(release) else { continue };
        let api = DeviceApi::of(&path).unwrap_or_else(|error| panic!("NCCL {release}: {error}"));
        let bytes = (api.requirements.bytes, api.communicator.bytes, api.window.bytes, api.context.bytes);
        assert_eq!(bytes, sizes, "NCCL {release}");
        assert_eq!(api.communicator.connections, Field::whole(connections, 1), "NCCL {release}");
        assert_eq!(api.communicator.handles, connections + 8, "NCCL {release}");
        assert_eq!(api.requirements.stride.map(|field| field.offset), stride, "NCCL {release}");
        assert_eq!((api.window.offset.offset, api.window.handles), (32, 40), "NCCL {release}");
        assert_eq!(api.context.signal_offsets, Field::whole(48, 8), "NCCL {release}");
    }
}

#[test]
fn a_library_without_debug_information_is_an_error() {
    let own = std::env::current_exe().expect("this program");
    let error = Layout::of(&own).expect_err("no NCCL").to_string();
    assert!(error.contains("has no structure ncclDevKernelArgs"), "{error}");
}

#[test]
fn a_field_is_read_from_its_bits() {
    let bytes = 0xfedc_ba98_7654_3210u64.to_le_bytes();
    assert_eq!(
        Field { offset: 0, size: 8, low: 21, width: 21 }.get(&bytes),
        0xfedc_ba98_7654_3210 >> 21 & 0x1f_ffff
    );
    assert_eq!(Field::whole(4, 4).get(&bytes), 0xfedc_ba98);
    assert_eq!(Field::whole(4, 4).signed(&bytes), -0x0123_4568);
    assert_eq!(Field { offset: 3, size: 1, low: 4, width: 3 }.get(&bytes), 7);
}
