//! Bytes over the agent's socket, and descriptors with them: of the plugin's statistics page, and of
//! the agent's memory file.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::cmsg_space;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

/// Most descriptors in one message (SCM_MAX_FD of the kernel). With less room the kernel passes some
/// and cuts the rest off, and those passed would stay open.
const MOST: usize = 253;

/// Sends what fits now, and the descriptor with the first byte. Returns the number of bytes; the
/// descriptor is sent unless that is an error. A peer that has closed raises no SIGPIPE.
///
/// # Errors
/// The system's, `WouldBlock` if nothing fits.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<usize> {
    let socket = socket.as_fd().as_raw_fd();
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    let fds = descriptor.map(|fd| [fd.as_raw_fd()]);
    let control = fds.as_ref().map(|fds| ControlMessage::ScmRights(fds));
    Ok(sendmsg::<()>(socket, &[IoSlice::new(bytes)], control.as_slice(), flags, None)?)
}

/// Reads what there is into `bytes`. Returns the number of bytes, 0 at the end, and the descriptors
/// that came with them. Those for which this process has no room are missing. To close one may take
/// as long as its owner likes.
///
/// # Errors
/// The system's, `WouldBlock` if nothing has come.
pub fn receive(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = cmsg_space!([i32; MOST]);
    let mut buffers = [IoSliceMut::new(bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<()>(socket.as_fd().as_raw_fd(), &mut buffers, Some(&mut control), flags)?;
    let received = message.bytes;
    let mut passed = Vec::new();
    // There is room for all in the buffer: what does not fit would be an error of the iterator.
    for part in message.cmsgs().into_iter().flatten() {
        if let ControlMessageOwned::ScmRights(fds) = part {
            // SAFETY: the kernel has just made these descriptors for this process, and nothing else
            // knows their numbers.
            passed.extend(fds.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    Ok((received, passed))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn all_descriptors_come_with_the_bytes() {
        for count in [2, 3, 253] {
            let (one, other) = UnixStream::pair().unwrap();
            let (mut read, write) = io::pipe().unwrap();
            let fds = vec![write.as_raw_fd(); count];
            let control = [ControlMessage::ScmRights(&fds)];
            sendmsg::<()>(one.as_raw_fd(), &[IoSlice::new(b"a")], &control, MsgFlags::empty(), None).unwrap();
            drop(write);
            let (n, passed) = receive(&other, &mut [0; 8]).unwrap();
            assert_eq!((n, passed.len()), (1, count));
            drop(passed);
            // The end of the pipe: nobody has its other end any more.
            nix::fcntl::fcntl(&read, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
            assert_eq!(io::Read::read(&mut read, &mut [0]).unwrap(), 0, "{count}");
        }
    }

    #[test]
    fn bytes_and_a_descriptor_arrive_together() {
        let (one, other) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        let mut bytes = [0; 8];
        let kind = receive(&other, &mut bytes).unwrap_err().kind();
        assert_eq!(kind, io::ErrorKind::WouldBlock);
        assert_eq!(send(&one, b"abc", Some(file.as_fd())).unwrap(), 3);
        assert_eq!(send(&one, b"de", None).unwrap(), 2);
        let (n, passed) = receive(&other, &mut bytes).unwrap();
        assert_eq!(&bytes[..n], b"abc", "bytes with a descriptor are not joined with those after");
        let [passed] = passed.try_into().unwrap();
        let passed = File::from(passed);
        assert_eq!(passed.metadata().unwrap().ino(), file.metadata().unwrap().ino());
        let (n, passed) = receive(&other, &mut bytes).unwrap();
        assert!(&bytes[..n] == b"de" && passed.is_empty());
        drop(one);
        assert_eq!(receive(&other, &mut bytes).unwrap().0, 0);
        assert_eq!(send(&other, b"x", None).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
