//! Conversations with the kernel over a netlink socket.

use std::{os::fd::OwnedFd, time::Duration};

use parking_lot::Mutex;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt,
};

use crate::{
    error::Error,
    wire::{ACK, DUMP, Message, messages, verdict},
};

const ERROR: u16 = 2;
const DONE: u16 = 3;
/// Marks a dump during which the table has changed, so that entries may be missing.
const INTERRUPTED: u16 = 0x10;
/// The kernel's dumps consist of datagrams of at most 32 KiB.
const BUFFER: usize = 64 * 1024;

/// A netlink socket with one conversation at a time.
pub(crate) struct Socket {
    inner: Mutex<Inner>,
}

struct Inner {
    fd: OwnedFd,
    sequence: u32,
}

/// The operation and its subject, for errors.
#[derive(Clone, Copy)]
pub(crate) struct Operation<'a>(pub(crate) &'static str, pub(crate) &'a dyn std::fmt::Display);

impl Operation<'_> {
    fn refused(self, errno: i32) -> Error {
        Error::Refused { operation: self.0, subject: self.1.to_string(), errno }
    }

    pub(crate) fn malformed(self) -> Error {
        Error::Malformed { operation: self.0, subject: self.1.to_string() }
    }
}

impl Socket {
    /// Opens a socket. Without a protocol it is NETLINK_ROUTE, whose number is 0.
    pub(crate) fn open(protocol: Option<Protocol>) -> Result<Self, Error> {
        let failed =
            |action| move |errno: rustix::io::Errno| Error::Socket { action, source: errno.into() };
        let fd = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )
        .map_err(failed("opening"))?;
        // The kernel answers at once, so a timeout means that the answer was lost.
        sockopt::set_socket_timeout(&fd, sockopt::Timeout::Recv, Some(Duration::from_secs(10)))
            .map_err(failed("setting its time-out"))?;
        Ok(Self { inner: Mutex::new(Inner { fd, sequence: 0 }) })
    }

    /// Sends a change and waits for the kernel's result.
    pub(crate) fn change(&self, about: Operation<'_>, message: &mut Message) -> Result<(), Error> {
        self.converse(about, message, &mut |_| {})
    }

    /// Gets one object, or `None` if it does not exist.
    pub(crate) fn get<T>(
        &self,
        about: Operation<'_>,
        message: &mut Message,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let mut found = None;
        match self.converse(about, message, &mut |body| found = parse(body)) {
            Ok(()) => found.map(Some).ok_or(about.malformed()),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn dump<T>(
        &self,
        about: Operation<'_>,
        message: impl Fn() -> Message,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        // An interrupted dump is repeated. A table that changes every time is an error after four attempts.
        for _ in 0..4 {
            let mut found = Vec::new();
            match self.converse(about, &mut message(), &mut |body| found.extend(parse(body))) {
                Err(error) if error.errno() == Some(rustix::io::Errno::INTR.raw_os_error()) => {}
                Err(error) => return Err(error),
                Ok(()) => return Ok(found),
            }
        }
        Err(about.refused(rustix::io::Errno::INTR.raw_os_error()))
    }

    fn converse(
        &self,
        about: Operation<'_>,
        message: &mut Message,
        each: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Error> {
        let mut inner = self.inner.lock();
        inner.sequence = inner.sequence.wrapping_add(1);
        let sequence = inner.sequence;
        let failed =
            |action| move |errno: rustix::io::Errno| Error::Socket { action, source: errno.into() };
        let bytes = message.finish(sequence);
        rustix::net::send(&inner.fd, bytes, SendFlags::empty()).map_err(failed("sending"))?;
        let mut buffer = vec![0; BUFFER];
        let mut interrupted = false;
        loop {
            let received = rustix::io::retry_on_intr(|| {
                rustix::net::recv(&inner.fd, &mut buffer[..], RecvFlags::empty())
            });
            let (length, _) = received.map_err(failed("receiving"))?;
            // Skip answers to an earlier conversation that timed out.
            for reply in messages(&buffer[..length]).filter(|reply| reply.sequence == sequence) {
                interrupted |= reply.flags & INTERRUPTED != 0;
                match reply.kind {
                    ERROR | DONE => {
                        return match verdict(reply.body) {
                            Some(0) | None if interrupted => {
                                Err(about.refused(rustix::io::Errno::INTR.raw_os_error()))
                            }
                            Some(0) => Ok(()),
                            Some(errno) => Err(about.refused(errno)),
                            None => Err(about.malformed()),
                        };
                    }
                    _ => each(reply.body),
                }
            }
        }
    }
}

/// Builds a request that changes something.
pub(crate) fn change(kind: u16, flags: u16, fixed: &[u8]) -> Message {
    Message::new(kind, ACK | flags, fixed)
}

pub(crate) fn dump(kind: u16, fixed: &[u8]) -> Message {
    Message::new(kind, DUMP, fixed)
}
