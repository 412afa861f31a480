//! A process that loads the plugin and runs commands, one per line. It answers each line by "ok …"
//! or "error …".

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::transfer::{End, Flow, Spec, round};
use mpib::failure::{Failure, Kind};
use mpib::plugin::open_table;
use nccl_net_host::{Error, HANDLE_BYTES, Handle, Listener, Net, RecvComm, SendComm, Settings, logger};
use nccl_net_mpib_agent_iface::stats::{Summary, pages_of};

/// Longer than the plugin's own limits for a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(100);

static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Worker {
    net: Net,
    listening: Vec<Listener>,
    sends: Vec<Rc<SendComm>>,
    recvs: Vec<Rc<RecvComm>>,
    /// Flows of failed transfers. Their memory stays registered until their comms are closed.
    failed: Vec<Flow>,
}

/// Loads the plugin, prints "ok PID", and runs commands until its input ends.
pub(crate) fn run(plugin: &Path, abi: u32) -> ExitCode {
    logger::install(|line| {
        eprintln!("{} [{}] {}", std::process::id(), line.level, line.text);
        if line.level == logger::WARN {
            WARNINGS.lock().unwrap_or_else(PoisonError::into_inner).push(line.text.clone());
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
    // One line per message. A write error means that nobody reads: the input ends then too.
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
        let net = Net::init(open_table(plugin, abi, None, None)?, &Settings::default())?;
        if net.devices()? < 1 {
            return Err(usage("the plugin has no devices".into()));
        }
        let (sends, recvs) = (Vec::new(), Vec::new());
        Ok(Self { net, listening: Vec::new(), sends, recvs, failed: Vec::new() })
    }

    fn obey(&mut self, line: &str) -> Result<String, Failure> {
        let words: Vec<&str> = line.split(' ').collect();
        match words[0] {
            "device" => Ok(format!("{:?}", self.net.properties(0)?)),
            // Makes `n` listeners, and returns their handles.
            "listen" => (0..word(&words, "n")?).map(|_| self.listen()).collect(),
            "accept" => self.accept(),
            "connect" => self.connect(words[1]),
            "move" => self.transfer(&words),
            "close" => self.close(),
            "warnings" => {
                let mut lines = WARNINGS.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(std::mem::take(&mut *lines).join(" | "))
            }
            // Failover episodes of this process, and the bytes that were sent again in them.
            "episodes" => {
                let pages = pages_of(std::process::id()).map_err(|e| usage(format!("statistics: {e}")))?;
                let sum = |of: fn(Summary) -> u64| pages.iter().map(|page| of(page.summary())).sum::<u64>();
                Ok(format!("{} {}", sum(|s| s.episodes), sum(|s| s.replayed)))
            }
            // Bytes that softverbs has counted on each rail.
            "counters" => {
                let counters = mpib::rails::read().unwrap_or_default();
                Ok(counters.iter().map(|(rail, bytes)| format!("{rail}={bytes} ")).collect())
            }
            _ => Err(usage(format!("unknown command {line:?}"))),
        }
    }

    fn listen(&mut self) -> Result<String, Failure> {
        let listener = self.net.listen(0)?;
        let handle = listener.handle().0.iter().map(|b| format!("{b:02x}")).collect();
        self.listening.push(listener);
        Ok(handle)
    }

    /// Accepts one connection on each listener, then closes the listeners.
    fn accept(&mut self) -> Result<String, Failure> {
        let waiting = std::mem::take(&mut self.listening);
        let comms = all("accept", waiting.len(), |i| waiting[i].accept())?;
        self.recvs.extend(comms.into_iter().map(Rc::new));
        waiting.into_iter().try_for_each(Listener::close)?;
        Ok(self.recvs.len().to_string())
    }

    /// Connects to all handles at the same time.
    fn connect(&mut self, handles: &str) -> Result<String, Failure> {
        let digits = handles.as_bytes().chunks_exact(2 * HANDLE_BYTES);
        let byte = |pair: &[u8]| u8::from_str_radix(&String::from_utf8_lossy(pair), 16).unwrap_or_default();
        let handle = |text: &[u8]| Handle(std::array::from_fn(|i| byte(&text[2 * i..2 * i + 2])));
        let mut handles: Vec<Handle> = digits.map(handle).collect();
        let comms = all("connect", handles.len(), |i| self.net.connect(0, &mut handles[i]))?;
        self.sends.extend(comms.into_iter().map(Rc::new));
        Ok(self.sends.len().to_string())
    }

    /// Runs `rounds` rounds of each size over all comms of the named directions. With `tell=1` it
    /// prints a line "moving" after the first round.
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
            let sends = self.sends.iter().cloned().map(End::Send).enumerate();
            let recvs = self.recvs.iter().cloned().map(End::Recv).enumerate();
            for (number, end) in sends.chain(recvs) {
                if way == "both" || (way == "send") == matches!(end, End::Send(_)) {
                    flows.push((number, Flow::new(end, &spec)?));
                }
            }
            for n in 0..rounds {
                if let Err(e) = round(&mut flows, &spec) {
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
            flows.into_iter().try_for_each(|(_, flow)| flow.end())?;
        }
        Ok(moved.to_string())
    }

    fn close(&mut self) -> Result<String, Failure> {
        self.failed.drain(..).try_for_each(Flow::end)?;
        // Only flows share a comm, and all flows have ended.
        self.sends.drain(..).filter_map(Rc::into_inner).try_for_each(SendComm::close)?;
        self.recvs.drain(..).filter_map(Rc::into_inner).try_for_each(RecvComm::close)?;
        self.listening.drain(..).try_for_each(Listener::close)?;
        Ok(String::new())
    }
}

/// Polls `n` attempts until each of them has its comm.
fn all<T>(
    what: &str,
    n: usize,
    mut poll: impl FnMut(usize) -> Result<Option<T>, Error>,
) -> Result<Vec<T>, Failure> {
    let mut comms: Vec<Option<T>> = std::iter::repeat_with(|| None).take(n).collect();
    let start = Instant::now();
    while comms.iter().any(Option::is_none) {
        for (i, comm) in comms.iter_mut().enumerate() {
            if comm.is_none() {
                *comm = poll(i)?;
            }
        }
        if start.elapsed() > CONNECT_LIMIT {
            let text = format!("{what} gives no comm within {CONNECT_LIMIT:?}");
            return Err(Failure::new(Kind::Timeout, text));
        }
        std::thread::yield_now();
    }
    Ok(comms.into_iter().flatten().collect())
}
