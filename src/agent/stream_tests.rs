//! The client against an agent that sends any bytes, and a hint file that anybody changes.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use nccl_net_mpib_agent_iface::agent::memory::{MEMORY_SIZE, MemoryWriter};
use nccl_net_mpib_agent_iface::agent::{
    ENTRY_SIZE, HEADER_SIZE, HINTS_SIZE, Hint, SHARE_ONE, entry_offset, header, passing,
};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::*;
use crate::agent::Addresses;
use crate::agent::file::HintFile;
use crate::agent::hint::{LatestHint, Reader};
use crate::agent::table::ConnIds;
use crate::config::Config;

const OURS: Addresses = Addresses {
    sout_src: Ipv4Addr::new(10, 0, 0, 1),
    sout_dst: Ipv4Addr::new(10, 0, 0, 2),
    sup_src: Ipv4Addr::new(10, 1, 0, 1),
    sup_dst: Ipv4Addr::new(10, 1, 0, 2),
};
/// The slots that well-formed answers name: few, so the file's entries are those of the answers.
const SLOTS: u8 = 4;

struct World {
    options: Options,
    path: PathBuf,
    now: Instant,
    table: Table,
    hint: Arc<LatestHint>,
    reader: Reader,
    id: u32,
    ids: ConnIds,
    open: Option<(Open, UnixStream)>,
    file: HintFile,
    memory: MemoryWriter,
    /// Every share that the file or the memory file has had for the connection.
    good: Vec<u16>,
}

/// Takes the next bytes; zeros follow the last one.
fn take<const N: usize>(data: &mut &[u8]) -> [u8; N] {
    let mut out = [0; N];
    let (front, rest) = data.split_at(N.min(data.len()));
    out[..front.len()].copy_from_slice(front);
    *data = rest;
    out
}

/// Takes as many bytes as the next one says.
fn take_bytes<'a>(data: &mut &'a [u8]) -> &'a [u8] {
    let [n] = take(data);
    let (front, rest) = data.split_at(usize::from(n).min(data.len()));
    *data = rest;
    front
}

/// Does what the bytes stand for with a hint file in `folder`, which the caller removes. The share of
/// the connection is always one that was written for it.
pub fn simulated(mut data: &[u8], folder: &Path) {
    let mut world = World::new(folder.join("hints"));
    while !data.is_empty() {
        let [what] = take(&mut data);
        world.act(what, &mut data);
        let (share, read) = (world.hint.now(), world.reader.hint());
        assert!(share <= SHARE_ONE && world.good.contains(&share), "share {share} of {:?}", world.good);
        assert!(read.is_none_or(|read| read == share), "the send path has {read:?}, the client {share}");
        world.table.troubles(world.now, &world.options);
    }
    let _ = fs::remove_file(&world.path);
}

impl World {
    fn new(path: PathBuf) -> Self {
        let _ = fs::remove_file(&path);
        let files = vec![path.clone()];
        let options = Options { files: files.clone(), ..Options::from(&Config::default()) };
        let hint = Arc::new(LatestHint::default());
        let mut file = HintFile::new(options.trust());
        file.set_paths(files);
        let mut world = Self {
            path,
            now: Instant::now(),
            table: Table::default(),
            reader: Reader::new(Arc::clone(&hint)),
            hint,
            id: 0,
            ids: ConnIds::default(),
            open: None,
            file,
            memory: MemoryWriter::create().unwrap(),
            good: vec![0],
            options,
        };
        world.register();
        world
    }

    /// Opens the connection, in place of the one before.
    fn register(&mut self) {
        self.table.close(self.id);
        let id = Arc::new(self.ids.reserve());
        self.id = id.get();
        self.table.open(id, OURS, Arc::clone(&self.hint));
    }

    fn act(&mut self, what: u8, data: &mut &[u8]) {
        match what % 14 {
            0 => self.connect((what / 14).is_multiple_of(2)),
            1 => self.say(take_bytes(data)),
            2 => self.answer(what / 14, data),
            3 => self.pass_memory(what / 14, data),
            4 | 5 => self.step(),
            6 => self.now += Duration::from_millis(u16::from_le_bytes(take(data)).into()),
            7 => self.write_hint(what / 14, data),
            8 => {
                let at = u64::from(u16::from_le_bytes(take(data))) % (HINTS_SIZE as u64 + 64);
                let bytes = take_bytes(data);
                self.change_file(|file| file.write_all_at(bytes, at));
            }
            9 => {
                let len = u64::from(u16::from_le_bytes(take(data))) % (2 * HINTS_SIZE as u64);
                self.change_file(|file| file.set_len(len));
            }
            10 => self.replace_file(what / 14),
            11 => self.read_file(),
            12 => {
                let share = u16::from_le_bytes(take(data));
                let src = if (what / 14).is_multiple_of(4) { Ipv4Addr::BROADCAST } else { OURS.sout_src };
                self.memory.assign(what % SLOTS, src, OURS.sout_dst, share);
                self.good.push(share.min(SHARE_ONE));
            }
            _ => self.register(),
        }
    }

    fn connect(&mut self, offer: bool) {
        if self.open.is_none() {
            let (ours, agent) = UnixStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            agent.set_nonblocking(true).unwrap();
            self.open = Some((Open::new(ours, offer), agent));
        }
    }

    /// Sends bytes as the agent. They are lost if the client has closed, or reads nothing.
    fn say(&mut self, bytes: &[u8]) {
        if let Some((_, agent)) = &mut self.open {
            let _ = agent.write_all(bytes);
        }
    }

    fn answer(&mut self, how: u8, data: &mut &[u8]) {
        let [status, flags] = take(data);
        let status = Status(status / 64);
        let response = match how % 4 {
            0 => Response::Deregistered { status },
            1 => Response::PortsChanged,
            _ => Response::Registered { status, slot: u32::from(how) % u32::from(SLOTS) },
        };
        let (bytes, len) = response.encode_with(flags % 4);
        self.say(&bytes[..len]);
    }

    /// Answers REGISTER with a memory file: a good one, or one that is not sealed or is altered.
    fn pass_memory(&mut self, how: u8, data: &mut &[u8]) {
        let file = match how % 4 {
            0 => bad_memory(how / 4, take(data)),
            _ => self.memory.descriptor().try_clone_to_owned().unwrap(),
        };
        let response =
            Response::Registered { status: Status::SUCCESS, slot: u32::from(how) % u32::from(SLOTS) };
        let (bytes, len) = response.encode_with(IN_MEMORY);
        if let Some((_, agent)) = &self.open {
            let _ = passing::send(agent, &bytes[..len], Some(file.as_fd()));
        }
    }

    /// Steps the client until it has nothing to do.
    fn step(&mut self) {
        let Some((open, _)) = &mut self.open else { return };
        for _ in 0..STEPS {
            match open.step(self.now, &mut self.table, &self.options) {
                Ok(Step::Again | Step::Answer) => {}
                Ok(Step::Idle) => return,
                Err(fault) => {
                    assert!(!fault.to_string().is_empty());
                    self.open = None;
                    return self.table.agent_lost();
                }
            }
        }
    }

    fn write_hint(&mut self, how: u8, data: &mut &[u8]) {
        let src = if how.is_multiple_of(4) { Ipv4Addr::BROADCAST } else { OURS.sout_src };
        let [a, b, seq] = take(data);
        let sup_bw = u16::from_le_bytes([a, b]).into();
        let hint = Hint { sup_bw, seq: seq.into(), src, dst: OURS.sout_dst };
        let at = entry_offset(how % SLOTS) as u64;
        self.change_file(|file| file.write_all_at(&hint.encode(), at));
    }

    fn change_file(&mut self, change: impl FnOnce(&File) -> io::Result<()>) {
        if let Ok(file) = OpenOptions::new().write(true).open(&self.path) {
            change(&file).unwrap();
        }
        self.note_shares();
    }

    /// Removes the file, or replaces it by an empty one or one without hints.
    fn replace_file(&mut self, how: u8) {
        let _ = fs::remove_file(&self.path);
        if !how.is_multiple_of(4) {
            let mut bytes = vec![0; if how % 4 == 1 { 0 } else { HINTS_SIZE }];
            bytes.iter_mut().zip(header()).for_each(|(place, byte)| *place = byte);
            let mut options = OpenOptions::new();
            let file = options.write(true).create_new(true).mode(if how % 8 == 7 { 0o666 } else { 0o644 });
            file.open(&self.path).unwrap().write_all(&bytes).unwrap();
        }
    }

    /// Notes the shares that the file has for the connection.
    fn note_shares(&mut self) {
        let Ok(bytes) = fs::read(&self.path) else { return };
        let entries = bytes.get(HEADER_SIZE..).unwrap_or_default().as_chunks::<ENTRY_SIZE>().0;
        let own = entries.iter().map(Hint::decode).filter(|hint| OURS.own(hint));
        self.good.extend(own.map(|hint| hint.share()));
        self.good.sort_unstable();
        self.good.dedup();
    }

    fn read_file(&mut self) {
        match self.file.read() {
            Ok(slots) => self.table.publish(slots, self.now),
            Err(fault) => {
                assert!(!fault.to_string().is_empty());
                self.table.unreadable(self.now);
            }
        }
    }
}

/// A file that is nearly a memory file.
fn bad_memory(how: u8, [at, byte, len]: [u8; 3]) -> OwnedFd {
    let file = File::from(memfd_create("nearly", MFdFlags::MFD_ALLOW_SEALING).unwrap());
    file.set_len(MEMORY_SIZE as u64 - u64::from(how & 1) * u64::from(len)).unwrap();
    let good = MemoryWriter::create().unwrap();
    let mut bytes = [0; 64];
    File::from(good.descriptor().try_clone_to_owned().unwrap()).read_exact_at(&mut bytes, 0).unwrap();
    bytes[usize::from(at) % 64] = byte;
    file.write_all_at(&bytes, 0).unwrap();
    if how & 2 == 0 {
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW)).unwrap();
    }
    file.into()
}
