//! The state machine of one transfer, without socket or clock.

use std::{fs::File, io, os::unix::fs::FileExt, time::Duration};

use super::packet::{self, ReadRequest};

/// The number of times that a packet is sent again before the transfer is given up.
const RETRIES: u32 = 6;
/// The maximum window size in blocks, which limits bursts to one client.
const MAX_WINDOW: u64 = 64;
/// The maximum number of bytes of a window.
const MAX_BURST: u64 = 256 << 10;
/// The maximum block size, which fits an IPv4 UDP datagram.
const MAX_BLOCK: u64 = 65_464;

/// The content to send.
#[derive(Debug)]
pub enum Source {
    File(File, u64),
    Bytes(Vec<u8>),
}

impl Source {
    fn len(&self) -> u64 {
        match self {
            Self::File(_, len) => *len,
            Self::Bytes(bytes) => bytes.len() as u64,
        }
    }

    fn read(&self, from: u64, len: u64) -> io::Result<Vec<u8>> {
        let want = usize::try_from(len.min(self.len().saturating_sub(from))).unwrap_or(0);
        match self {
            Self::File(file, _) => {
                let mut buffer = vec![0; want];
                file.read_exact_at(&mut buffer, from)?;
                Ok(buffer)
            }
            Self::Bytes(bytes) => {
                let from = usize::try_from(from).unwrap_or(usize::MAX).min(bytes.len());
                Ok(bytes[from..from + want].to_vec())
            }
        }
    }
}

/// The next action for the caller.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Send the packets of [`Transfer::packets`].
    Send,
    Wait,
    Done,
    GiveUp,
}

/// A file on its way to one client, with the negotiated block and window sizes (RFC 2348, RFC 7440).
#[derive(Debug)]
pub struct Transfer {
    source: Source,
    block: u64,
    window: u64,
    timeout: Duration,
    /// The option acknowledgement, until the client answers it.
    oack: Option<Vec<u8>>,
    /// The number of acknowledged blocks.
    acked: u64,
    retries: u32,
    /// `true` after a repeated acknowledgement has caused the window to be sent again.
    repeated: bool,
}

impl Transfer {
    /// Creates a transfer with the client's options. Unknown options and invalid values are ignored.
    pub fn new(source: Source, request: &ReadRequest) -> Self {
        let mut transfer = Self {
            source,
            block: 512,
            window: 1,
            timeout: Duration::from_secs(1),
            oack: None,
            acked: 0,
            retries: 0,
            repeated: false,
        };
        let mut accepted: Vec<(&str, u64)> = Vec::new();
        let sizes = request.options.iter().filter(|(key, _)| key == "blksize");
        let block = sizes.filter_map(|(_, value)| value.parse::<u64>().ok()).max();
        let most = (MAX_BURST / block.unwrap_or(512).clamp(8, MAX_BLOCK)).clamp(1, MAX_WINDOW);
        for (key, value) in &request.options {
            let (key, number) = (key.as_str(), value.parse::<u64>());
            // An option with an invalid value is left out of the answer, like an unknown one.
            let agreed = match (key, number) {
                ("blksize", Ok(size)) if size >= 8 => {
                    transfer.block = size.min(MAX_BLOCK);
                    transfer.block
                }
                ("windowsize", Ok(window)) if (1..=65_535).contains(&window) => {
                    transfer.window = window.min(most);
                    transfer.window
                }
                ("timeout", Ok(seconds)) if (1..=255).contains(&seconds) => {
                    transfer.timeout = Duration::from_secs(seconds);
                    seconds
                }
                ("tsize", Ok(_)) => transfer.source.len(),
                _ => continue,
            };
            if !accepted.iter().any(|(other, _)| *other == key) {
                accepted.push((key, agreed));
            }
        }
        if !accepted.is_empty() {
            transfer.oack = Some(packet::oack(&accepted));
        }
        transfer
    }

    /// Returns the time to wait for an answer. It grows with each retry.
    pub fn timeout(&self) -> Duration {
        self.timeout * (1 + self.retries.min(3))
    }

    fn blocks(&self) -> u64 {
        self.source.len() / self.block + 1
    }

    /// Returns the packets to send next. They are built lazily, because windows may be large and clients many.
    pub fn packets(&self) -> impl Iterator<Item = io::Result<Vec<u8>>> + '_ {
        let last = match &self.oack {
            Some(_) => self.acked,
            None => (self.acked + self.window).min(self.blocks()),
        };
        let blocks = (self.acked + 1..=last).map(|number| {
            let bytes = self.source.read((number - 1) * self.block, self.block)?;
            // Block numbers have 16 bits and wrap to zero.
            Ok(packet::data((number & 0xffff) as u16, &bytes))
        });
        self.oack.iter().map(|oack| Ok(oack.clone())).chain(blocks)
    }

    /// Handles an acknowledgement, which has the last 16 bits of the block number.
    pub fn acknowledged(&mut self, number: u16) -> Step {
        if self.oack.is_some() {
            if number != 0 {
                return Step::Wait;
            }
            self.oack = None;
            self.retries = 0;
            return Step::Send;
        }
        let ahead = u64::from(number.wrapping_sub((self.acked & 0xffff) as u16));
        if ahead == 0 && self.window > 1 && !self.repeated {
            // The first block of the window was lost. Answer only once; otherwise every stray copy would double the
            // traffic.
            self.repeated = true;
            return Step::Send;
        }
        if ahead == 0 || ahead > self.window || self.acked + ahead > self.blocks() {
            return Step::Wait;
        }
        self.acked += ahead;
        self.retries = 0;
        self.repeated = false;
        if self.acked == self.blocks() { Step::Done } else { Step::Send }
    }

    /// Handles a timeout: sends again, or gives up after [`RETRIES`] attempts.
    pub fn timed_out(&mut self) -> Step {
        if self.retries == RETRIES {
            return Step::GiveUp;
        }
        self.retries += 1;
        Step::Send
    }
}

/// Converts line ends for netascii mode.
pub(super) fn netascii(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 32);
    for byte in bytes {
        match byte {
            b'\n' => out.extend(b"\r\n"),
            b'\r' => out.extend(b"\r\0"),
            byte => out.push(*byte),
        }
    }
    out
}
