//! Opens a plugin, prints its devices, and moves one checked message through each of its tables.
//!
//! ```sh
//! cargo run -p nccl-net-host --example drive -- build/libnccl-net-mpib.so
//! ```

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use nccl_net_host::{Error, MAX_GROUP, Net, Plugin, Recv, Settings, Table, exported_versions, logger, until};

/// How long each step may take.
const LIMIT: Duration = Duration::from_secs(20);
const SIZE: usize = 1 << 20;
const TAG: i32 = 7;

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: drive PLUGIN.so");
        return ExitCode::from(2);
    };
    logger::install(|line| {
        if line.level == logger::WARN {
            eprintln!("plugin: {}", line.text);
        }
    });
    match drive(&path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("drive: {error}");
            ExitCode::FAILURE
        }
    }
}

fn drive(path: &Path) -> Result<(), Error> {
    // The versions are read from the file before any of its code runs.
    let versions = exported_versions(path)?;
    // SAFETY: the user named this file as a plugin.
    let plugin = unsafe { Plugin::open(path)? };
    for version in versions {
        through(plugin.table(version)?)?;
    }
    Ok(())
}

/// A whole life: init, devices, a connection, a message, finalize.
fn through(table: Table) -> Result<(), Error> {
    let net = Net::init(table, &Settings::default())?;
    println!("v{}: {}", table.version(), net.name());
    for dev in 0..net.devices()? {
        let device = net.properties(dev)?;
        println!(
            "  device {dev}: {}, {} Mb/s, up to {} receives in a group",
            device.name.as_deref().unwrap_or("?"),
            device.speed,
            device.max_recvs.clamp(0, MAX_GROUP as i32)
        );
    }
    message(&net)?;
    net.finalize()
}

fn message(net: &Net) -> Result<(), Error> {
    let (send, recv) = net.connect_to_itself(0, LIMIT)?;
    let sent: Vec<u8> = (0..SIZE).map(|at| (at * 31 + 7) as u8).collect();
    let from = send.register(sent.clone())?;
    let to = recv.register(vec![0; SIZE])?;

    let group = [Recv { mr: to.mr(), offset: 0, len: SIZE, tag: TAG }];
    let mut receive = until("irecv", LIMIT, || recv.irecv(&group))?;
    let mut request = until("isend", LIMIT, || send.isend(from.mr(), 0, SIZE, TAG))?;
    // Both requests in turn: a plugin may move a message in `test` alone.
    let (mut sizes, mut done) = ([0; 64], [false; 2]);
    until("test", LIMIT, || {
        done[0] = done[0] || send.test(&mut request, &mut [0; 64])?;
        done[1] = done[1] || recv.test(&mut receive, &mut sizes)?;
        Ok((done == [true; 2]).then_some(()))
    })?;
    recv.irecv_consumed(&receive)?;

    let received = recv.release(to)?;
    send.release(from)?;
    send.close()?;
    recv.close()?;
    assert_eq!(usize::try_from(sizes[0]), Ok(SIZE), "the size that test gave");
    assert!(received == sent, "the message arrived with other bytes");
    println!("  {SIZE} bytes sent, received and compared");
    Ok(())
}
