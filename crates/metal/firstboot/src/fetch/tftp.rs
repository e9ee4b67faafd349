//! Reads a file by TFTP (RFC 1350), in blocks of 1,468 bytes if the server agrees (RFC 2348).

use std::{net::SocketAddr, time::Duration};

use tokio::{
    net::{UdpSocket, lookup_host},
    time::{Instant, timeout},
};

use super::{FetchError, LIMIT};

const BLOCK: usize = 1468;
const WAIT: Duration = Duration::from_secs(2);
const TRIES: usize = 15;

pub(super) async fn get(url: &str, total: Option<Duration>) -> Result<Vec<u8>, FetchError> {
    let failed = |reason: String| FetchError::Transfer { url: url.to_owned(), reason };
    let wrong = || FetchError::Url {
        url: url.to_owned(),
        reason: "write tftp://HOST[:PORT]/PATH".to_owned(),
    };
    let rest = url.get(7..).ok_or_else(wrong)?;
    let (authority, path) = rest.split_once('/').ok_or_else(wrong)?;
    let authority = match authority.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => authority.to_owned(),
        _ => format!("{authority}:69"),
    };
    let found = lookup_host(&authority).await.map(|mut found| found.next());
    let server = found.map_err(|e| failed(format!("{authority}: {e}")))?.ok_or_else(wrong)?;
    let path = path.split('?').next().unwrap_or_default();
    let path = ignition::decode_url(&format!("data:,{path}")).map_err(|_| wrong())?;
    let transfer = transfer(server, &path);
    let outcome = match total {
        None => transfer.await,
        Some(total) => timeout(total, transfer)
            .await
            .unwrap_or_else(|_| Err("the time allowed was over".into())),
    };
    outcome.map_err(failed)
}

async fn transfer(server: SocketAddr, path: &[u8]) -> Result<Vec<u8>, String> {
    let text = |error: std::io::Error| error.to_string();
    let any: SocketAddr =
        if server.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).await.map_err(text)?;
    let mut packet =
        [b"\0\x01", path, b"\0octet\0blksize\0", BLOCK.to_string().as_bytes(), b"\0"].concat();
    let (mut peer, mut block, mut size, mut tries) = (server, 0u16, 512, 0);
    let mut out = Vec::new();
    let mut buffer = vec![0; 65_536];
    socket.send_to(&packet, peer).await.map_err(text)?;
    let mut sent = Instant::now();
    loop {
        let left = (sent + WAIT).saturating_duration_since(Instant::now());
        let Ok(received) = timeout(left, socket.recv_from(&mut buffer)).await else {
            tries += 1;
            if tries == TRIES {
                return Err(format!("{peer} does not answer"));
            }
            socket.send_to(&packet, peer).await.map_err(text)?;
            sent = Instant::now();
            continue;
        };
        let (length, from) = received.map_err(text)?;
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
                    return Err(format!("the file has more than {LIMIT} bytes"));
                }
                out.extend_from_slice(data);
                block = number;
                let last = data.len() < size;
                packet = [&[0, 4], &buffer[2..4]].concat();
                peer = from;
                socket.send_to(&packet, peer).await.map_err(text)?;
                if last {
                    return Ok(out);
                }
            }
            6 if block == 0 && out.is_empty() => {
                size = accepted(&buffer[2..length]).unwrap_or(512);
                packet = vec![0, 4, 0, 0];
                peer = from;
                socket.send_to(&packet, peer).await.map_err(text)?;
            }
            5 => {
                let said = String::from_utf8_lossy(&buffer[4..length]);
                return Err(format!(
                    "the server answered: {} (error {number})",
                    said.trim_end_matches('\0')
                ));
            }
            _ => continue,
        }
        (sent, tries) = (Instant::now(), 0);
    }
}

/// Returns the block size that the server accepted.
fn accepted(options: &[u8]) -> Option<usize> {
    let mut words =
        options.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    words.find(|word| word.eq_ignore_ascii_case("blksize"))?;
    words.next()?.parse().ok().filter(|size| (8..=BLOCK).contains(size))
}
