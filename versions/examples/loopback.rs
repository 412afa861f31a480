//! A whole NCCL network plugin: one device that moves host memory over TCP on 127.0.0.1.
//!
//! A message is its length in four bytes, then its data. A connection carries messages in the order
//! of the calls: only the oldest request moves bytes, the others wait.

use std::ffi::{CStr, c_int};
use std::io::{ErrorKind, Read, Result as IoResult, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, atomic::AtomicUsize, atomic::Ordering::Relaxed};
use std::{slice, time::Duration};

use nccl_net_versions::*;

struct Loopback;
nccl_net_versions::export!(Loopback);

/// One end of a connection.
struct Link {
    stream: TcpStream,
    sending: bool,
    started: AtomicUsize,
    completed: AtomicUsize,
}

/// Message `number` of its link. `moved` of its bytes are transferred, header included.
#[derive(Default)]
struct Progress {
    number: usize,
    buffer: Buffer,
    header: [u8; 4],
    moved: usize,
}

struct Message(Arc<Link>, Mutex<Progress>);

type Comm = RequestPool<Message>;
type Request = Pooled<Message>;
type Posted<'a> = Result<Option<&'a Tagged<Request>>, Failure>;

fn open(stream: TcpStream, sending: bool) -> IoResult<Comm> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let link = Link { stream, sending, started: AtomicUsize::new(0), completed: AtomicUsize::new(0) };
    let (link, requests) = (Arc::new(link), abi::NCCL_NET_MAX_REQUESTS as usize);
    Ok(RequestPool::new(requests, |_| Message(link.clone(), Mutex::default())))
}

/// Starts a message, or returns `None` while all requests are in use.
fn start(comm: &Comm, buffer: Buffer) -> Posted<'_> {
    let Some(request) = comm.acquire() else { return Ok(None) };
    let (number, header) = (request.0.started.fetch_add(1, Relaxed), (buffer.len as u32).to_le_bytes());
    *request.1.lock().unwrap() = Progress { number, buffer, header, moved: 0 };
    Ok(Some(request))
}

/// Moves as many bytes as the socket accepts. Returns the message's size once it is complete.
fn advance(Message(link, progress): &Message) -> IoResult<Option<usize>> {
    let mut progress = progress.lock().unwrap();
    while progress.number == link.completed.load(Relaxed) {
        let len = u32::from_le_bytes(progress.header) as usize;
        let (start, left) = match progress.moved.checked_sub(4) {
            None => (progress.header.as_mut_ptr().wrapping_add(progress.moved), 4 - progress.moved),
            Some(_) if len > progress.buffer.len => return Err(ErrorKind::FileTooLarge.into()),
            Some(done) if done == len => {
                link.completed.fetch_add(1, Relaxed);
                return Ok(Some(len));
            }
            Some(done) => (progress.buffer.as_ptr().wrapping_add(done), len - done),
        };
        progress.moved += match link.sending {
            // SAFETY: a part of the header, or of the buffer that NCCL keeps until completion.
            true => (&link.stream).write(unsafe { slice::from_raw_parts(start, left) })?,
            // SAFETY: as above, and NCCL does not access the buffer until completion.
            false => match (&link.stream).read(unsafe { slice::from_raw_parts_mut(start, left) })? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                moved => moved,
            },
        };
    }
    Ok(None)
}

/// Turns an error into a log line and a code, but "would block" and a timeout into `None`.
fn poll<T>(call: &str, failure: Failure, result: IoResult<T>) -> Result<Option<T>, Failure> {
    result.map(Some).or_else(|error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Ok(None),
        _ => {
            warn::<Loopback>(call, &error);
            Err(failure)
        }
    })
}

impl Plugin for Loopback {
    const NAME: &'static CStr = c"Loopback";
}

impl NetPlugin for Loopback {
    type Context = ();
    type Listen = TcpListener;
    type Send = Comm;
    type Recv = Comm;
    type Mr = ();
    type Request = Request;

    fn init(_: &Init) -> Result<(), Failure> {
        Ok(())
    }
    fn devices() -> Result<usize, Failure> {
        Ok(1)
    }
    fn properties(dev: usize) -> Result<Properties, Failure> {
        if dev == 0 { Ok(Properties::new(c"lo0")) } else { Err(Failure::InvalidArgument) }
    }
    fn listen(_: &(), dev: usize, handle: &mut HandleBuf) -> Result<TcpListener, Failure> {
        Self::properties(dev)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| {
            handle[..2].copy_from_slice(&listener.local_addr()?.port().to_le_bytes());
            listener.set_nonblocking(true).map(|()| listener)
        });
        poll("listen", Failure::System, listener)?.ok_or(Failure::System)
    }
    fn connect(_: &(), dev: usize, _: &CommConfig, h: &mut HandleBuf) -> Result<Option<Comm>, Failure> {
        Self::properties(dev)?;
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, u16::from_le_bytes([h[0], h[1]])));
        // On 127.0.0.1 the kernel connects at once, unless the listener's backlog is full.
        let stream = TcpStream::connect_timeout(&peer, Duration::from_millis(1));
        poll("connect", Failure::Remote, stream.and_then(|stream| open(stream, true)))
    }
    fn accept(listen: &TcpListener) -> Result<Option<Comm>, Failure> {
        poll("accept", Failure::System, listen.accept().and_then(|(stream, _)| open(stream, false)))
    }
    fn reg_mr_send(_: &Comm, _: Buffer, kind: MemKind, _: Option<DmaBuf>) -> Result<(), Failure> {
        if kind == MemKind::Host { Ok(()) } else { Err(Failure::InvalidUsage) }
    }
    fn reg_mr_recv(comm: &Comm, b: Buffer, kind: MemKind, d: Option<DmaBuf>) -> Result<(), Failure> {
        Self::reg_mr_send(comm, b, kind, d)
    }
    fn isend<'a>(comm: &'a Comm, b: Buffer, _: c_int, _: Option<&()>, _: ProfilerHandle) -> Posted<'a> {
        start(comm, b)
    }
    fn irecv<'a>(comm: &'a Comm, buffers: &[RecvBuffer<'_, Self>], _: bool) -> Posted<'a> {
        if let [one] = buffers { start(comm, one.buffer) } else { Err(Failure::InvalidUsage) }
    }
    fn test(request: &Request, sizes: &mut Sizes) -> Result<bool, Failure> {
        let complete = poll("test", Failure::Remote, advance(request))?.flatten();
        let Some(size) = complete else { return Ok(false) };
        sizes.set(0, size)?;
        request.release();
        Ok(true)
    }
}
