//! Fuzz tests of SPDY frames from a runtime and WebSocket frames from a client.

use futures_util::FutureExt as _;

use crate::{
    protocol::{Dialect, Options},
    spdy::{self, Encoder, Frame},
    websocket::{self, Channel},
};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Returns output, a reset, a ping and an end, as a runtime sends them.
fn spoken() -> Vec<u8> {
    let encoder = Encoder::default();
    let mut bytes = encoder.data(3, b"hello", false);
    bytes.extend(encoder.pong(9));
    bytes.extend(encoder.data(1, br#"{"status":"Failure","message":"exit code 3"}"#, true));
    bytes.extend([0x80, 3, 0, 3, 0, 0, 0, 8, 0, 0, 0, 5, 0, 0, 0, 1, 0x80, 3, 0, 7, 0, 0, 0, 0]);
    bytes
}

#[test]
fn spdy_frames() {
    let headers = Encoder::default().open(1, &[("streamtype", "error")]);
    fuzz::fuzz(HERE, "spdy", &[&spoken(), &headers], |input| {
        let (mut from, mut content) = (input, 0);
        // The input is in memory, so reading never blocks.
        while let Some(Ok(Some(frame))) = spdy::read(&mut from).now_or_never() {
            if let Frame::Data { content: bytes, .. } = frame {
                content += bytes.len();
            }
        }
        assert!(content <= input.len(), "more was read than was sent");
    });
}

/// Encodes a masked WebSocket frame of a client.
fn masked(kind: u8, content: &[u8]) -> Vec<u8> {
    let mask = [1, 2, 3, 4];
    let body = content.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask);
    [0x80 | kind, 0x80 | content.len() as u8].into_iter().chain(mask).chain(body).collect()
}

#[test]
fn websocket_frames() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let options = Options { stdin: true, stdout: true, stderr: true, tty: true };
    let of_container = Channel::of_container(options);
    let of_ports = Channel::of_ports(&[80, 443]);
    let client = [masked(2, b"\0ls\n"), masked(1, b"0bHM="), masked(2, b"\xff\0"), masked(9, b"x")];
    let client = [client.concat(), masked(8, &[3, 0xe8])].concat();
    // One input holds both ends: the client's frames, and after a separator the runtime's.
    let seed = [&client[..], b"|", &spoken()].concat();
    fuzz::fuzz(HERE, "websocket", &[&seed, &client], |input| {
        let middle = input.iter().position(|byte| *byte == b'|').unwrap_or(input.len());
        let (client, spoken) = input.split_at(middle);
        for (base64, channels) in
            [(false, &of_container), (true, &of_container), (false, &of_ports)]
        {
            let dialect = Dialect { status: false, base64, can_close: true };
            let client = tokio::io::join(client, tokio::io::sink());
            let spoken = tokio::io::join(spoken.get(1..).unwrap_or_default(), tokio::io::sink());
            runtime.block_on(async {
                let _ = websocket::channels(client, spoken, channels, dialect).await;
            });
        }
    });
}

/// A message longer than a frame is split. A truncated length would make the rest look like frames that the sender
/// chose.
#[test]
fn splits_message_longer_than_a_frame() {
    let content = vec![0x80; (1 << 24) + 5];
    let bytes = Encoder::default().data(3, &content, true);
    let (mut from, mut read) = (bytes.as_slice(), Vec::new());
    let mut ended = false;
    while let Some(frame) = spdy::read(&mut from).now_or_never().unwrap().unwrap() {
        let Frame::Data { stream: 3, last, content } = frame else { panic!("{frame:?}") };
        assert!(!ended);
        (ended, read) = (last, [read, content].concat());
    }
    assert!(ended && read == content);
}
