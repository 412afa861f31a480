//! A host of the pair: runs commands and holds conversations with them, here or on the other
//! machine.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::follow::PORT;

/// Result of a check: a detail for its line, or the reason of its failure.
pub(crate) type Outcome<T = String> = Result<T, String>;

/// Limit of a wait. Only a command that hangs reaches it.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);

/// Host on which commands run.
#[derive(Debug, Clone)]
pub(crate) enum Host {
    Here,
    /// Address at which `follow` listens.
    There(Ipv4Addr),
}

/// A running command.
#[derive(Debug)]
pub(crate) struct Talk {
    /// Name of the command in error texts.
    name: String,
    to: Option<Pipe>,
    lines: Receiver<String>,
    child: Option<Child>,
}

#[derive(Debug)]
enum Pipe {
    Child(std::process::ChildStdin),
    Socket(TcpStream),
}

impl Host {
    /// Starts a shell command.
    pub(crate) fn start(&self, name: &str, command: &str) -> Outcome<Talk> {
        let fault = |e: std::io::Error| format!("{name}: {e}");
        let (tell, lines) = channel();
        let listen = |from: Box<dyn std::io::Read + Send>| {
            std::thread::spawn(move || {
                for line in BufReader::new(from).lines().map_while(Result::ok) {
                    // The receiver may be dropped already.
                    let _ = tell.send(line);
                }
            });
        };
        let (to, child) = match self {
            Self::Here => {
                let mut shell = Command::new("bash");
                shell.args(["-c", command]).stdin(Stdio::piped()).stdout(Stdio::piped());
                let mut child = shell.spawn().map_err(fault)?;
                listen(Box::new(child.stdout.take().expect("piped")));
                (Pipe::Child(child.stdin.take().expect("piped")), Some(child))
            }
            Self::There(address) => {
                let mut stream = reach(*address).map_err(fault)?;
                writeln!(stream, "{command}").map_err(fault)?;
                listen(Box::new(stream.try_clone().map_err(fault)?));
                (Pipe::Socket(stream), None)
            }
        };
        Ok(Talk { name: name.to_owned(), to: Some(to), lines, child })
    }

    /// Runs a shell command and returns its output, or an error if it failed.
    pub(crate) fn sh(&self, command: &str) -> Outcome {
        let mut talk = self.start("sh", &format!("{{ {command}; }} 2>&1; echo \"status $?\""))?;
        talk.hang_up();
        let mut said = Vec::new();
        loop {
            let line = talk.line().map_err(|e| format!("{command}: {e}"))?;
            match line.strip_prefix("status ") {
                Some("0") => return Ok(said.join("\n")),
                Some(status) => return Err(format!("{command}: status {status}: {}", said.join("; "))),
                None => said.push(line),
            }
        }
    }
}

/// Connects to `follow`, with retries: the other host may boot more slowly.
fn reach(address: Ipv4Addr) -> std::io::Result<TcpStream> {
    let start = Instant::now();
    loop {
        match TcpStream::connect((address, PORT)) {
            Err(e) if start.elapsed() > LIMIT => return Err(e),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
            Ok(stream) => return Ok(stream),
        }
    }
}

impl Talk {
    pub(crate) fn say(&mut self, line: &str) -> Outcome<()> {
        let wrote = match &mut self.to {
            Some(Pipe::Child(to)) => writeln!(to, "{line}"),
            Some(Pipe::Socket(to)) => writeln!(to, "{line}"),
            None => return Err(format!("{}: nothing more can be said", self.name)),
        };
        wrote.map_err(|e| format!("{}: {e}", self.name))
    }

    /// Returns the next line that the command prints.
    pub(crate) fn line(&self) -> Outcome {
        self.lines.recv_timeout(LIMIT).map_err(|e| match e {
            RecvTimeoutError::Timeout => format!("{} says nothing for {LIMIT:?}", self.name),
            RecvTimeoutError::Disconnected => format!("{} has ended", self.name),
        })
    }

    /// Returns the command's answer: the text behind "ok", or as an error the text behind "error".
    pub(crate) fn answer(&self) -> Outcome {
        let line = self.line()?;
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("ok", rest) => Ok(rest.to_owned()),
            ("error", rest) => Err(format!("{}: {rest}", self.name)),
            _ => Err(format!("{} said {line:?}", self.name)),
        }
    }

    pub(crate) fn ask(&mut self, line: &str) -> Outcome {
        self.say(line)?;
        self.answer().map_err(|e| format!("{line:.40}: {e}"))
    }

    /// Ends the command's input.
    fn hang_up(&mut self) {
        if let Some(Pipe::Socket(socket)) = self.to.take() {
            // Shuts down this direction only. The command's output still arrives.
            let _ = socket.shutdown(Shutdown::Write);
        }
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        self.hang_up();
        // A worker ends with its input. A worker that does not end is killed.
        if let Some(child) = &mut self.child {
            while self.lines.recv_timeout(LIMIT).is_ok() {}
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
