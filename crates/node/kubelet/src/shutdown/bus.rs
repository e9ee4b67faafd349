//! A minimal client of D-Bus: method calls with texts and numbers, signals, and received file descriptors.

use std::{
    collections::VecDeque,
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

use data_encoding::HEXLOWER;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, Interest},
    net::UnixStream,
};

use super::message::{Body, Header, Kind, Message, MessageError};

/// The time limit of a call.
const TIMEOUT: Duration = Duration::from_secs(25);
/// The number of signals that may wait while a call is under way.
const SIGNALS: usize = 64;
/// The number of file descriptors that may wait for their message.
const DESCRIPTORS: usize = 16;
/// The longest line of the authentication.
const LINE: usize = 256;

/// The name of the bus itself.
pub(super) const DBUS: &str = "org.freedesktop.DBus";

/// The error of the connection to the bus or of a call.
#[derive(Debug, thiserror::Error)]
pub(super) enum BusError {
    #[error("connect to the system bus {}: {source}; is D-Bus running?", path.display())]
    Connect { path: PathBuf, source: io::Error },
    #[error("authenticate to the system bus: it answered {answer:?}")]
    Refused { answer: String },
    #[error("talk to the system bus: {0}")]
    Io(#[from] io::Error),
    #[error("read a message of the system bus: {0}")]
    Message(#[from] MessageError),
    #[error("the system bus closed the connection")]
    Closed,
    #[error("the system bus sent more than it may")]
    TooMany,
    #[error("{member}: {name}: {text}")]
    Call { member: &'static str, name: String, text: String },
    #[error("{member}: no answer within {}s", TIMEOUT.as_secs())]
    Timeout { member: &'static str },
    #[error("{member}: the answer has no {expected}")]
    Answer { member: &'static str, expected: &'static str },
}

/// A method of an object on the bus.
#[derive(Clone, Copy)]
pub(super) struct Method {
    pub(super) destination: &'static str,
    pub(super) path: &'static str,
    pub(super) interface: &'static str,
    pub(super) member: &'static str,
}

impl Method {
    /// A method of the bus itself.
    pub(super) const fn of_bus(member: &'static str) -> Self {
        Self { destination: DBUS, path: "/org/freedesktop/DBus", interface: DBUS, member }
    }
}

/// A connection to a message bus.
pub(super) struct Bus {
    stream: UnixStream,
    serial: u32,
    received: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
    signals: VecDeque<Message>,
    /// The unique name of the peer whose signals are received, besides those of the bus itself.
    source: String,
}

impl Bus {
    /// Connects to the bus at a socket and authenticates as this process's user.
    pub(super) async fn connect(path: &Path) -> Result<Self, BusError> {
        let stream = UnixStream::connect(path)
            .await
            .map_err(|source| BusError::Connect { path: path.to_owned(), source })?;
        let mut bus = Self {
            stream,
            serial: 0,
            received: Vec::new(),
            descriptors: VecDeque::new(),
            signals: VecDeque::new(),
            source: String::new(),
        };
        let uid = nix::unistd::geteuid().to_string();
        let identity = HEXLOWER.encode(uid.as_bytes());
        let hello = async {
            bus.line(&format!("\0AUTH EXTERNAL {identity}\r\n"), "OK ").await?;
            bus.line("NEGOTIATE_UNIX_FD\r\n", "AGREE_UNIX_FD").await?;
            bus.stream.write_all(b"BEGIN\r\n").await?;
            bus.answer(Method::of_bus("Hello"), Body::default()).await
        };
        let timeout = BusError::Timeout { member: "Hello" };
        tokio::time::timeout(TIMEOUT, hello).await.map_err(|_| timeout)??;
        Ok(bus)
    }

    /// Sends a line of the authentication. The answer must begin with `expected`.
    async fn line(&mut self, line: &str, expected: &str) -> Result<(), BusError> {
        self.stream.write_all(line.as_bytes()).await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n") && answer.len() < LINE {
            answer.push(self.stream.read_u8().await?);
        }
        let answer = String::from_utf8_lossy(&answer).trim().to_owned();
        if answer.starts_with(expected) { Ok(()) } else { Err(BusError::Refused { answer }) }
    }

    /// Calls a method and returns its answer.
    pub(super) async fn call(&mut self, method: Method, body: Body) -> Result<Message, BusError> {
        let timeout = BusError::Timeout { member: method.member };
        tokio::time::timeout(TIMEOUT, self.answer(method, body)).await.map_err(|_| timeout)?
    }

    async fn answer(&mut self, method: Method, body: Body) -> Result<Message, BusError> {
        let header = Header {
            path: method.path.to_owned(),
            interface: method.interface.to_owned(),
            member: method.member.to_owned(),
            destination: method.destination.to_owned(),
            ..Header::new(Kind::Call)
        };
        let serial = self.send(header, body).await?;
        loop {
            let message = self.receive().await?;
            match message.header.kind {
                Kind::Return if message.header.reply_to == serial => return Ok(message),
                Kind::Error if message.header.reply_to == serial => {
                    let text = message.texts().next().unwrap_or_default().to_owned();
                    let name = message.header.error;
                    return Err(BusError::Call { member: method.member, name, text });
                }
                Kind::Signal if !self.receives(&message) => {}
                Kind::Signal if self.signals.len() >= SIGNALS => return Err(BusError::TooMany),
                Kind::Signal => self.signals.push_back(message),
                _ => {}
            }
        }
    }

    /// Sends a message and returns its serial number.
    pub(super) async fn send(&mut self, header: Header, body: Body) -> Result<u32, BusError> {
        self.serial += 1;
        self.stream.write_all(&header.encode(self.serial, &body)).await?;
        Ok(self.serial)
    }

    /// Waits for the next signal.
    pub(super) async fn signal(&mut self) -> Result<Message, BusError> {
        loop {
            if let Some(signal) = self.signals.pop_front() {
                return Ok(signal);
            }
            let message = self.receive().await?;
            if message.header.kind == Kind::Signal && self.receives(&message) {
                return Ok(message);
            }
        }
    }

    /// Receives the signals of the peer with this unique name, besides those of the bus itself.
    pub(super) fn receive_from(&mut self, source: String) {
        self.source = source;
    }

    /// Reports whether a signal is received. Rules of the bus hold back only broadcasts, so any user of the machine
    /// may send a signal to this connection. The bus sets the sender.
    fn receives(&self, signal: &Message) -> bool {
        let sender = &signal.header.sender;
        *sender == DBUS || !self.source.is_empty() && *sender == self.source
    }

    /// Waits for the next message. May be dropped and called again.
    pub(super) async fn receive(&mut self) -> Result<Message, BusError> {
        loop {
            if let Some((message, length)) = Message::decode(&self.received)? {
                self.received.drain(..length);
                let count = usize::try_from(message.header.descriptors).unwrap_or(usize::MAX);
                if count > self.descriptors.len() {
                    return Err(BusError::TooMany);
                }
                let descriptors = self.descriptors.drain(..count).collect();
                return Ok(Message { descriptors, ..message });
            }
            self.read().await?;
        }
    }

    /// Reads bytes and file descriptors from the socket.
    async fn read(&mut self) -> Result<(), BusError> {
        let Self { stream, received, descriptors, .. } = self;
        let mut bytes = [0; 4096];
        let read = stream.async_io(Interest::READABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [io::IoSliceMut::new(&mut bytes)];
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let read = recvmsg(stream.as_fd(), &mut parts, &mut control, flags)?;
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(all) = message {
                    descriptors.extend(all);
                }
            }
            Ok(read.bytes)
        });
        let count = read.await?;
        if count == 0 {
            return Err(BusError::Closed);
        }
        if descriptors.len() > DESCRIPTORS {
            return Err(BusError::TooMany);
        }
        received.extend_from_slice(&bytes[..count]);
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn stream(&self) -> &UnixStream {
        &self.stream
    }
}
