//! Netlink messages as bytes, and a netlink socket.
//!
//! Layouts: `linux/netlink.h`. Numbers are in the machine's byte order unless a family defines another.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, setsockopt, socket,
        sockopt,
    },
};

pub(super) const REQUEST: u16 = 0x1;
pub(super) const ACK: u16 = 0x4;
pub(super) const DUMP: u16 = 0x300;

/// The type of an error; an acknowledgement is the error 0.
pub(super) const ERROR: u16 = 2;
/// The type of the end of a dump.
pub(super) const DONE: u16 = 3;

const HEADER_BYTES: usize = 16;

/// Messages to send in order.
#[derive(Default)]
pub(super) struct Messages {
    bytes: Vec<u8>,
    last: usize,
}

impl Messages {
    /// Begins a message with the fixed part of its family.
    pub fn message(&mut self, kind: u16, flags: u16, fixed: &[u8]) -> &mut Messages {
        self.last = self.bytes.len();
        self.bytes.extend([0; 4]);
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(flags.to_ne_bytes());
        self.bytes.extend([0; 8]);
        self.put(fixed)
    }

    /// Appends an attribute to the last message.
    pub fn attribute(&mut self, kind: u16, value: &[u8]) -> &mut Messages {
        let length = 4 + value.len() as u16;
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.put(value)
    }

    fn put(&mut self, value: &[u8]) -> &mut Messages {
        self.bytes.extend(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        let length = (self.bytes.len() - self.last) as u32;
        self.bytes[self.last..self.last + 4].copy_from_slice(&length.to_ne_bytes());
        self
    }

    /// Removes all messages and keeps the buffer.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.last = 0;
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Splits a received datagram into messages, as type and rest. Leaves out a truncated message.
pub(super) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(*bytes.first_chunk::<4>()?) as usize;
        let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
        let rest = bytes.get(HEADER_BYTES..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, rest))
    })
}

/// Splits the rest of a message, after its fixed part, into attributes, as type and value.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = u16::from_ne_bytes(*bytes.first_chunk::<2>()?) as usize;
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?);
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        // The two highest bits are flags.
        Some((kind & 0x3fff, value))
    })
}

/// Returns the error in the rest of a message of type [`ERROR`]; none for an acknowledgement.
pub(super) fn error(rest: &[u8]) -> Option<Errno> {
    let code = rest.first_chunk::<4>().map_or(libc::EINVAL, |code| -i32::from_ne_bytes(*code));
    (code != 0).then(|| Errno::from_raw(code))
}

/// A netlink socket. Belongs to the network namespace in which it was opened, on every thread.
pub(super) struct Socket(OwnedFd);

impl Socket {
    /// Opens a socket in the network namespace of this thread.
    pub fn open(family: SockProtocol) -> io::Result<Socket> {
        let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, family)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        Ok(Socket(fd))
    }

    /// Sets the size of the receive buffer, in bytes.
    pub fn buffer(&self, bytes: usize) -> io::Result<()> {
        Ok(setsockopt(&self.0, sockopt::RcvBufForce, &bytes)?)
    }

    pub fn send(&self, messages: &Messages) -> io::Result<()> {
        send(self.0.as_raw_fd(), messages.bytes(), MsgFlags::empty())?;
        Ok(())
    }

    /// Waits for a datagram.
    pub fn receive<'b>(&self, buffer: &'b mut [u8]) -> io::Result<&'b [u8]> {
        let length = recv(self.0.as_raw_fd(), buffer, MsgFlags::empty())?;
        Ok(&buffer[..length])
    }

    /// Receives a datagram, if there is one.
    pub fn receive_now<'b>(&self, buffer: &'b mut [u8]) -> nix::Result<Option<&'b [u8]>> {
        match recv(self.0.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(length) => Ok(Some(&buffer[..length])),
            Err(Errno::EAGAIN) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Sends one message and waits for its acknowledgement.
    pub fn ask(&self, message: &Messages) -> io::Result<()> {
        self.send(message)?;
        let mut buffer = [0; 4096];
        loop {
            for (kind, rest) in messages(self.receive(&mut buffer)?) {
                if kind == ERROR {
                    return error(rest).map_or(Ok(()), |errno| Err(errno.into()));
                }
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_together_is_taken_apart_again() {
        let mut sent = Messages::default();
        sent.message(0x301, REQUEST, &[1, 2, 3, 4]).attribute(7, &[9; 5]).attribute(8, &[]);
        sent.message(0x302, REQUEST | ACK, &[5, 6, 7, 8]);
        let taken: Vec<_> = messages(sent.bytes()).collect();
        assert_eq!(taken.len(), 2);
        assert_eq!((taken[0].0, &taken[0].1[..4]), (0x301, &[1, 2, 3, 4][..]));
        let inside: Vec<_> = attributes(&taken[0].1[4..]).collect();
        assert_eq!(inside, [(7, &[9; 5][..]), (8, &[][..])]);
        assert_eq!(taken[1], (0x302, &[5, 6, 7, 8][..]));
    }

    #[test]
    fn a_message_that_is_cut_off_anywhere_is_left_out_and_nothing_panics() {
        let mut sent = Messages::default();
        sent.message(1, REQUEST, &[0; 4]).attribute(2, &[1; 9]);
        let bytes = sent.bytes();
        assert!((0..bytes.len()).all(|length| messages(&bytes[..length]).count() == 0));
        for length in 0..bytes.len() {
            attributes(bytes[16 + 4..].get(..length).unwrap_or_default()).for_each(drop);
        }
    }

    #[test]
    fn a_length_of_nothing_ends_instead_of_going_on_for_ever() {
        assert_eq!(messages(&[0; 64]).count(), 0);
        assert_eq!(attributes(&[0; 64]).count(), 0);
    }
}
