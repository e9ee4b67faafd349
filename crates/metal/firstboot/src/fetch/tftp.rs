//! Reads a file by TFTP (RFC 1350), in blocks of 1,468 bytes if the server agrees (RFC 2348).

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    net::{UdpSocket, lookup_host},
    time::{Instant, timeout},
};

use super::settings::LIMIT;
use crate::error::FetchError;

const BLOCK: usize = 1468;
const WAIT: Duration = Duration::from_secs(2);
const TRIES: usize = 15;

pub(super) async fn get(url: &str, total: Option<Duration>) -> Result<Vec<u8>, FetchError> {
    let failed = |reason: String| FetchError::Transfer { url: url.to_owned(), reason };
    let invalid = || FetchError::Url {
        url: url.to_owned(),
        reason: "write tftp://HOST[:PORT]/PATH".to_owned(),
    };
    let rest = url.get(7..).ok_or_else(invalid)?;
    let (authority, path) = rest.split_once('/').ok_or_else(invalid)?;
    let authority = match authority.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => authority.to_owned(),
        _ => format!("{authority}:69"),
    };
    let addresses = lookup_host(&authority).await.map(|mut addresses| addresses.next());
    let server = addresses.map_err(|e| failed(format!("{authority}: {e}")))?.ok_or_else(invalid)?;
    let path = path.split('?').next().unwrap_or_default();
    let path = ignition::decode_url(&format!("data:,{path}")).map_err(|_| invalid())?;
    let transfer = transfer(server, &path);
    let outcome = match total {
        None => transfer.await,
        Some(total) => timeout(total, transfer).await.unwrap_or(Err(TransferError::Timeout)),
    };
    outcome.map_err(|error| failed(error.to_string()))
}

/// The errors of a transfer.
#[derive(Debug, thiserror::Error)]
enum TransferError {
    #[error(transparent)]
    Socket(#[from] io::Error),
    #[error("{0} does not answer")]
    Silence(SocketAddr),
    #[error("the file has more than {LIMIT} bytes")]
    Size,
    #[error("the server answered: {text} (error {code})")]
    Server { code: u16, text: String },
    #[error("the transfer did not end before its deadline")]
    Timeout,
}

async fn transfer(server: SocketAddr, path: &[u8]) -> Result<Vec<u8>, TransferError> {
    let any: SocketAddr =
        if server.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).await?;
    let mut packet =
        [b"\0\x01", path, b"\0octet\0blksize\0", BLOCK.to_string().as_bytes(), b"\0"].concat();
    let (mut peer, mut block, mut size, mut tries) = (server, 0u16, 512, 0);
    let mut out = Vec::new();
    let mut buffer = vec![0; 65_536];
    socket.send_to(&packet, peer).await?;
    let mut sent = Instant::now();
    loop {
        let remaining = (sent + WAIT).saturating_duration_since(Instant::now());
        let Ok(received) = timeout(remaining, socket.recv_from(&mut buffer)).await else {
            tries += 1;
            if tries == TRIES {
                return Err(TransferError::Silence(peer));
            }
            socket.send_to(&packet, peer).await?;
            sent = Instant::now();
            continue;
        };
        let (length, from) = received?;
        // The server's first answer determines its port for the transfer.
        let opened = peer != server;
        if from.ip() != server.ip() || opened && from != peer || length < 4 {
            continue;
        }
        let number = u16::from_be_bytes([buffer[2], buffer[3]]);
        match buffer[1] {
            3 if number == block.wrapping_add(1) => {
                let data = &buffer[4..length];
                if (out.len() + data.len()) as u64 > LIMIT {
                    return Err(TransferError::Size);
                }
                out.extend_from_slice(data);
                block = number;
                let last = data.len() < size;
                packet = [&[0, 4], &buffer[2..4]].concat();
                peer = from;
                socket.send_to(&packet, peer).await?;
                if last {
                    return Ok(out);
                }
            }
            6 if block == 0 && out.is_empty() => {
                size = block_size(&buffer[2..length]).unwrap_or(512);
                packet = vec![0, 4, 0, 0];
                peer = from;
                socket.send_to(&packet, peer).await?;
            }
            5 => {
                let text = String::from_utf8_lossy(&buffer[4..length]);
                let text = text.trim_end_matches('\0').to_owned();
                return Err(TransferError::Server { code: number, text });
            }
            _ => continue,
        }
        (sent, tries) = (Instant::now(), 0);
    }
}

/// Returns the block size that the server accepted.
fn block_size(options: &[u8]) -> Option<usize> {
    let mut words =
        options.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    words.find(|word| word.eq_ignore_ascii_case("blksize"))?;
    words.next()?.parse().ok().filter(|size| (8..=BLOCK).contains(size))
}
