//! A process with the plugin in it, told what to do a line at a time. Each line is answered by "ok …" or "error …".

use std::collections::VecDeque;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::transfer::{Flow, Spec, round};
use mpib::failure::{Failure, Kind};
use mpib::plugin::{Comm, HANDLE_BYTES, Handle, Net, logger, open, watch::Watch};

/// Longer than the plugin's own limits for a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(100);

static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Worker {
    net: Box<dyn Net>,
    listening: VecDeque<Comm>,
    sends: Vec<Comm>,
    recvs: Vec<Comm>,
    /// Memory of transfers that failed, which is in use until its comm is closed.
    failed: Vec<Flow>,
}

/// Loads the plugin, says "ok PID", and obeys until its input ends.
pub(crate) fn run(plugin: &Path, abi: u32) -> ExitCode {
    logger::install(|level, line| {
        eprintln!("{} [{level}] {line}", std::process::id());
        if level == logger::WARN {
            WARNINGS.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned());
        }
    });
    let mut worker = match Worker::new(plugin, abi) {
        Ok(worker) => worker,
        Err(e) => {
            tell(&format!("error {e}"));
            return ExitCode::FAILURE;
        }
    };
    tell(&format!("ok {}", std::process::id()));
    for line in std::io::stdin().lines().map_while(Result::ok) {
        match worker.obey(&line) {
            Ok(said) => tell(&format!("ok {said}")),
            Err(e) => tell(&format!("error {e}")),
        }
    }
    ExitCode::SUCCESS
}

fn tell(line: &str) {
    // One line each; whether somebody reads it shows at the next one.
    let _ = writeln!(std::io::stdout(), "{}", line.replace('\n', " / "));
}

fn usage(text: String) -> Failure {
    Failure::new(Kind::Usage, text)
}

/// The value of `name=value` among the words.
fn word<T: FromStr>(words: &[&str], name: &str) -> Result<T, Failure> {
    let found = words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    found.and_then(|text| text.parse().ok()).ok_or_else(|| usage(format!("no {name} in {words:?}")))
}

impl Worker {
    fn new(plugin: &Path, abi: u32) -> Result<Self, Failure> {
        let mut net = open(plugin, abi, None, Rc::new(Watch::new()?))?;
        net.init()?;
        if net.devices()? < 1 {
            return Err(usage("the plugin has no devices".into()));
        }
        let (listening, failed) = (VecDeque::new(), Vec::new());
        Ok(Self { net, listening, sends: Vec::new(), recvs: Vec::new(), failed })
    }

    fn obey(&mut self, line: &str) -> Result<String, Failure> {
        let words: Vec<&str> = line.split(' ').collect();
        match words[0] {
            "device" => Ok(format!("{:?}", self.net.properties(0)?)),
            // As many listeners as told; their handles.
            "listen" => (0..word(&words, "n")?).map(|_| self.listen()).collect(),
            "accept" => self.accept(),
            "connect" => self.connect(words[1]),
            "move" => self.transfer(&words),
            "close" => self.close(),
            "warnings" => {
                let mut lines = WARNINGS.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(std::mem::take(&mut *lines).join(" | "))
            }
            // What softverbs counts, in bytes by rail.
            "counters" => {
                let counters = mpib::rails::read().unwrap_or_default();
                Ok(counters.iter().map(|(rail, bytes)| format!("{rail}={bytes} ")).collect())
            }
            _ => Err(usage(format!("unknown command {line:?}"))),
        }
    }

    fn listen(&mut self) -> Result<String, Failure> {
        let mut handle = Handle([0; HANDLE_BYTES]);
        self.listening.push_back(self.net.listen(0, &mut handle)?);
        Ok(handle.0.iter().map(|b| format!("{b:02x}")).collect())
    }

    /// One connection on each listener, which are closed.
    fn accept(&mut self) -> Result<String, Failure> {
        let mut waiting: VecDeque<Comm> = std::mem::take(&mut self.listening);
        let mut comms = vec![None; waiting.len()];
        self.all("accept", &mut comms, |net, i| net.accept(waiting[i]))?;
        self.recvs.extend(comms.into_iter().flatten());
        waiting.drain(..).try_for_each(|listen| self.net.close_listen(listen))?;
        Ok(self.recvs.len().to_string())
    }

    /// To each of these handles, all at once.
    fn connect(&mut self, handles: &str) -> Result<String, Failure> {
        let digits = handles.as_bytes().chunks_exact(2 * HANDLE_BYTES);
        let byte = |pair: &[u8]| u8::from_str_radix(&String::from_utf8_lossy(pair), 16).unwrap_or_default();
        let handle = |text: &[u8]| Handle(std::array::from_fn(|i| byte(&text[2 * i..2 * i + 2])));
        let mut handles: Vec<Handle> = digits.map(handle).collect();
        let mut comms = vec![None; handles.len()];
        self.all("connect", &mut comms, |net, i| net.connect(0, &mut handles[i]))?;
        self.sends.extend(comms.into_iter().flatten());
        Ok(self.sends.len().to_string())
    }

    /// Polls until each has its comm.
    fn all(
        &self,
        what: &str,
        comms: &mut [Option<Comm>],
        mut poll: impl FnMut(&dyn Net, usize) -> Result<Option<Comm>, Failure>,
    ) -> Result<(), Failure> {
        let start = Instant::now();
        while comms.iter().any(Option::is_none) {
            for (i, comm) in comms.iter_mut().enumerate() {
                if comm.is_none() {
                    *comm = poll(&*self.net, i)?;
                }
            }
            if start.elapsed() > CONNECT_LIMIT {
                return Err(Failure::new(
                    Kind::Timeout,
                    format!("{what} gives no comm within {CONNECT_LIMIT:?}"),
                ));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// `rounds` rounds of each size over all comms of the directions named. With `tell=1` a line "moving" comes
    /// after the first round.
    fn transfer(&mut self, words: &[&str]) -> Result<String, Failure> {
        let way: String = word(words, "way")?;
        let sizes: String = word(words, "sizes")?;
        let rounds: u64 = word(words, "rounds")?;
        let mut seed = word(words, "seed")?;
        let mut moved = 0;
        for size in sizes.split(',') {
            let size = size.parse().map_err(|_| usage(format!("size {size:?}")))?;
            let mut spec = Spec { size, group: word(words, "group")?, depth: word(words, "depth")?, seed };
            let mut flows = Vec::new();
            for (sends, comms) in [(true, &self.sends), (false, &self.recvs)] {
                if way == "both" || (way == "send") == sends {
                    for (number, comm) in comms.iter().enumerate() {
                        flows.push((number, Flow::new(&*self.net, *comm, sends, &spec)?));
                    }
                }
            }
            for n in 0..rounds {
                if let Err(e) = round(&*self.net, &mut flows, &spec) {
                    self.failed.extend(flows.into_iter().map(|(_, flow)| flow));
                    return Err(e);
                }
                spec.seed += (spec.group * spec.depth) as u64;
                moved += size as u64 * (spec.group * spec.depth) as u64;
                if n == 0 && words.contains(&"tell=1") {
                    tell("moving");
                }
            }
            seed = spec.seed;
            flows.into_iter().try_for_each(|(_, flow)| flow.end(&*self.net))?;
        }
        Ok(moved.to_string())
    }

    fn close(&mut self) -> Result<String, Failure> {
        self.failed.drain(..).try_for_each(|flow| flow.end(&*self.net))?;
        self.sends.drain(..).try_for_each(|comm| self.net.close_send(comm))?;
        self.recvs.drain(..).try_for_each(|comm| self.net.close_recv(comm))?;
        self.listening.drain(..).try_for_each(|comm| self.net.close_listen(comm))?;
        Ok(String::new())
    }
}
