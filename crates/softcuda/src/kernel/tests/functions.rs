use object::{Object, ObjectSection, ObjectSymbol};

use super::{Algorithm, Function, Kind};
use crate::{
    kernel::function::Functions,
    protocol::Protocol,
    reduce::{DataType, Division, Operator},
    testing::{cached_library, releases},
};

/// Returns a function that adds `f32` on a ring with Simple.
fn sum(kind: Kind) -> Function {
    let (operator, data_type) = (Operator::Sum, DataType::F32);
    Function { kind, operator, data_type, algorithm: Algorithm::Ring, protocol: Protocol::Simple }
}

#[test]
fn the_numbers_of_2_18_follow_the_formula() {
    let functions = Functions::of_formula();
    let number = |coll: u32, op: u32, data_type: u32, algo: u32, proto: u32| {
        11 + (((coll * 6 + op) * 10 + data_type) * 6 + algo) * 3 + proto
    };
    assert_eq!(functions.get(number(4, 0, 7, 1, 2)), Ok(sum(Kind::AllReduce)));
    assert_eq!(functions.get(number(3, 0, 7, 1, 2)), Ok(sum(Kind::ReduceScatter)));
    let max = Function { operator: Operator::Max, protocol: Protocol::Ll, ..sum(Kind::Reduce) };
    assert_eq!(functions.get(number(1, 2, 7, 1, 0)), Ok(max));
    assert_eq!(functions.get(5411).map(|function| function.kind), Ok(Kind::SendRecv));
    assert!(functions.get(0).is_err() && functions.get(5412).is_err());
}

#[test]
fn the_length_of_a_table_shows_its_form() {
    for (length, kind) in [
        (1360, Kind::ReduceScatter),
        (1361, Kind::ReduceScatter),
        (1514, Kind::ReduceScatter),
        (1667, Kind::ReduceScatter),
        (1997, Kind::ReduceScatter),
        (2000, Kind::ReduceScatter),
    ] {
        let table: Vec<i32> = (0..length).collect();
        let functions = Functions::of_table(&table).expect("a known length");
        let last = length as u32 - 2 + u32::from(length == 1360);
        assert_eq!(functions.get(last).map(|function| function.kind), Ok(kind), "length {length}");
        assert_eq!(functions.get(0).map(|function| function.kind), Ok(Kind::SendRecv));
        assert_eq!(functions.division, Division::Plain, "every row has a number of its own");
    }
    let error = Functions::of_table(&[0; 1234]).expect_err("an unknown length").to_string();
    assert_eq!(error, "table of functions with the length 1234 is unknown");
}

#[test]
fn a_number_for_two_types_has_divisions_with_the_sign() {
    let mut table: Vec<i32> = (0..1997).collect();
    let plain = Functions::of_table(&table).expect("known");
    let function = |data_type| Function { operator: Operator::SumPostDiv, data_type, ..sum(Kind::Reduce) };
    let row = |data_type| {
        let found = plain.iter().find(|(_, f)| *f == function(data_type));
        found.expect("a row").0 as usize
    };
    table[row(DataType::I32)] = -1;
    assert_eq!(Functions::of_table(&table).expect("known").division, Division::Plain);
    table[row(DataType::I32)] = table[row(DataType::U32)];
    let both = Functions::of_table(&table).expect("known");
    assert_eq!(both.division, Division::WithSign);
    assert_eq!(both.get(table[row(DataType::U32)] as u32), Ok(function(DataType::I32)), "the first row");
}

#[test]
fn every_cached_release_has_a_known_table() {
    for release in releases() {
        let Some(path) = cached_library(&release) else { continue };
        let file = std::fs::File::open(&path).expect("the library");
        // SAFETY: nobody writes to a library of the cache.
        let bytes = unsafe { memmap2::Mmap::map(&file) }.expect("a mapping");
        let elf = object::File::parse(&bytes[..]).expect("an ELF file");
        let symbol = elf.symbols().find(|symbol| symbol.name() == Ok("ncclDevFuncRowToId"));
        let Some(symbol) = symbol else {
            assert!(release.starts_with("2.18."), "NCCL {release} has no table of functions");
            continue;
        };
        let section = symbol.section_index().expect("a section");
        let section = elf.section_by_index(section).expect("a section");
        let table = section.data_range(symbol.address(), symbol.size()).expect("data").expect("data");
        let numbers = table.chunks_exact(4).map(|n| i32::from_le_bytes([n[0], n[1], n[2], n[3]]));
        let functions = Functions::of_table(&numbers.collect::<Vec<_>>());
        let functions = functions.unwrap_or_else(|unknown| panic!("NCCL {release}: {unknown}"));
        let minor: u32 = release.split('.').nth(1).expect("a number").parse().expect("a number");
        let division = if minor < 24 { Division::Plain } else { Division::WithSign };
        assert_eq!(functions.division, division, "NCCL {release}");
        for kind in [Kind::SendRecv, Kind::AllGather, Kind::Broadcast, Kind::AllReduce, Kind::Reduce] {
            assert!(functions.iter().any(|(_, function)| function.kind == kind), "NCCL {release}: {kind:?}");
        }
    }
}
