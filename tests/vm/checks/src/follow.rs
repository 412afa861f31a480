//! Runs commands on the other host: each connection sends one line, which a shell runs with the
//! connection as its input and output.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Command, ExitCode};

/// Where the leader finds it.
pub(crate) const PORT: u16 = 5555;

/// Returns only if it cannot listen on the port. Any host that reaches the port can run any
/// command: for guests on isolated wires only.
pub(crate) fn run() -> ExitCode {
    let listener = match TcpListener::bind(("0.0.0.0", PORT)) {
        Ok(listener) => listener,
        Err(e) => {
            eprintln!("port {PORT}: {e}");
            return ExitCode::FAILURE;
        }
    };
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || {
            if let Err(e) = serve(stream) {
                eprintln!("a command: {e}");
            }
        });
    }
    ExitCode::SUCCESS
}

fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    let mut line = Vec::new();
    let mut byte = [0];
    // To the end of the line and no further: the rest is the command's.
    while stream.read(&mut byte)? == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    let line = String::from_utf8_lossy(&line).into_owned();
    let (input, output) = (OwnedFd::from(stream.try_clone()?), OwnedFd::from(stream));
    Command::new("bash").args(["-c", &line]).stdin(input).stdout(output).status()?;
    Ok(())
}
