//! A simulated machine.

use std::{
    collections::HashMap,
    io,
    net::{self, Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use dhcproto::{
    Decodable, Decoder, Encodable, Encoder,
    v4::{Architecture, DhcpOption, Message, MessageType},
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, UdpSocket},
    sync::mpsc,
};

use crate::world::{Assets, LOADER, RELAY, SERVER};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// The latency of each DHCP answer, up to its arrival and up to its handling by the machine, which shares a thread
    /// with all others.
    Answer,
    Address,
    Loader,
    Scripts,
    Assets,
    Config,
}

impl Step {
    pub(crate) const NAMES: [(Self, &'static str); 6] = [
        (Self::Answer, "DHCP answer"),
        (Self::Address, "… until the machine sees it"),
        (Self::Loader, "boot loader by TFTP"),
        (Self::Scripts, "iPXE scripts"),
        (Self::Assets, "50 (12.5) MB of assets"),
        (Self::Config, "Ignition config"),
    ];
}

/// The relay's socket. It hands answers with their arrival time to the machine that their number names. It has a thread
/// of its own, so that the machines' other work does not count as server time.
pub(crate) struct Relay {
    socket: net::UdpSocket,
    waiting: Mutex<HashMap<u32, mpsc::Sender<(Message, Instant)>>>,
    pub(crate) done: AtomicBool,
}

impl Relay {
    pub(crate) fn new(socket: net::UdpSocket) -> io::Result<Self> {
        socket.set_read_timeout(Some(Duration::from_millis(100)))?;
        Ok(Self { socket, waiting: Mutex::default(), done: AtomicBool::new(false) })
    }

    /// Hands out answers until the benchmark ends.
    pub(crate) fn run(&self) {
        let mut buffer = vec![0; 4096];
        while !self.done.load(Ordering::Relaxed) {
            let Ok(length) = self.socket.recv(&mut buffer) else { continue };
            let now = Instant::now();
            let Ok(message) = Message::decode(&mut Decoder::new(&buffer[..length])) else {
                continue;
            };
            let waiting = self.waiting.lock();
            if let Some(sender) = waiting.get(&message.xid()) {
                let _ = sender.try_send((message, now));
            }
        }
    }
}

/// The pause of a machine after the server refused the address that it had offered.
const PAUSE: Duration = Duration::from_millis(100);

pub(crate) struct Machine {
    number: u32,
    /// The assets to fetch before the Ignition config and the report; `None` for DHCP and TFTP only.
    assets: Option<Assets>,
    pub(crate) times: Vec<(Step, Duration)>,
    /// The number of exchanges.
    request_count: u32,
    /// The number of DHCP packets sent again.
    pub(crate) repeated: u32,
    /// The number of addresses that were offered and then refused.
    pub(crate) refused: u32,
    pub(crate) failure: Option<String>,
}

impl Machine {
    pub(crate) fn new(number: u32, assets: Option<Assets>) -> Self {
        Self {
            number,
            assets,
            times: Vec::new(),
            request_count: 0,
            repeated: 0,
            refused: 0,
            failure: None,
        }
    }

    pub(crate) async fn boot(mut self, relay: &Relay) -> Self {
        if let Err(error) = self.steps(relay).await {
            self.failure = Some(format!("machine {}: {error}", self.number));
        }
        self
    }

    fn mac(&self) -> [u8; 6] {
        let [_, _, high, low] = self.number.to_be_bytes();
        [0x52, 0x54, 0, 1, high, low]
    }

    async fn steps(&mut self, relay: &Relay) -> io::Result<()> {
        let address = self.lease(relay, false).await?;
        let start = Instant::now();
        self.loader(address).await?;
        self.times.push((Step::Loader, start.elapsed()));
        if self.lease(relay, true).await? != address {
            return Err(io::Error::other("iPXE was given another address"));
        }
        let Some(assets) = self.assets else { return Ok(()) };
        let mac = self.mac().map(|byte| format!("{byte:02x}")).join("-");
        let start = Instant::now();
        get(address, "GET", "/boot.ipxe").await?;
        let script = get(address, "GET", &format!("/ipxe?mac={mac}&uuid=u-{mac}")).await?;
        let nonce = script.text.split("nonce=").nth(1).and_then(|rest| rest.lines().next());
        let nonce = nonce.unwrap_or_default().to_owned();
        self.times.push((Step::Scripts, start.elapsed()));
        let start = Instant::now();
        for (name, length) in assets {
            let got = get(address, "GET", &format!("/assets/{name}")).await?;
            if got.length != length {
                return Err(io::Error::other(format!("{name} has {} bytes", got.length)));
            }
        }
        self.times.push((Step::Assets, start.elapsed()));
        let start = Instant::now();
        let config = get(address, "GET", &format!("/ignition?mac={mac}&nonce={nonce}")).await?;
        if !config.text.contains(&mac.replace('-', "%3A")) {
            return Err(io::Error::other(format!("a wrong config: {}", config.text)));
        }
        self.times.push((Step::Config, start.elapsed()));
        get(address, "POST", &format!("/report?mac={mac}&nonce={nonce}&stage=installed")).await?;
        Ok(())
    }

    /// Requests an address, as firmware or as iPXE.
    async fn lease(&mut self, relay: &Relay, ipxe: bool) -> io::Result<Ipv4Addr> {
        // A server may offer an address twice. The later machine is refused and starts again, as clients do.
        for _ in 0..50 {
            let offer = self.exchange(relay, MessageType::Discover, None, ipxe).await?;
            let offer = offer.yiaddr();
            let answer = self.exchange(relay, MessageType::Request, Some(offer), ipxe).await?;
            if answer.opts().msg_type() == Some(MessageType::Nak) {
                self.refused += 1;
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            let same = answer.yiaddr() == offer;
            return same.then_some(offer).ok_or(io::Error::other("another address than offered"));
        }
        Err(io::Error::other("every address that was offered was refused"))
    }

    async fn exchange(
        &mut self,
        relay: &Relay,
        kind: MessageType,
        wanted: Option<Ipv4Addr>,
        ipxe: bool,
    ) -> io::Result<Message> {
        let none = Ipv4Addr::UNSPECIFIED;
        // Ignore late answers to earlier requests.
        self.request_count += 1;
        let xid = self.number << 8 | self.request_count;
        let mut message = Message::new_with_id(xid, none, none, none, RELAY, &self.mac());
        let options = message.opts_mut();
        options.insert(DhcpOption::MessageType(kind));
        options.insert(DhcpOption::ClassIdentifier(b"PXEClient:Arch:00000:UNDI:002001".to_vec()));
        options.insert(DhcpOption::ClientSystemArchitecture(Architecture(0)));
        if ipxe {
            options.insert(DhcpOption::UserClass(b"iPXE".to_vec()));
        }
        if let Some(address) = wanted {
            options.insert(DhcpOption::RequestedIpAddress(address));
            options.insert(DhcpOption::ServerIdentifier(SERVER));
        }
        let mut bytes = Vec::new();
        message.encode(&mut Encoder::new(&mut bytes)).map_err(io::Error::other)?;
        let (sender, mut answers) = mpsc::channel(4);
        relay.waiting.lock().insert(xid, sender);
        let start = Instant::now();
        for _ in 0..10 {
            relay.socket.send_to(&bytes, (SERVER, 67))?;
            if let Ok(Some((answer, came))) =
                tokio::time::timeout(Duration::from_secs(1), answers.recv()).await
            {
                self.times.push((Step::Answer, came - start));
                self.times.push((Step::Address, start.elapsed()));
                return Ok(answer);
            }
            self.repeated += 1;
        }
        Err(io::Error::other(format!("no answer to DHCP {kind:?}")))
    }

    /// Fetches the boot loader as firmware does: in blocks of 1468 bytes without a window.
    async fn loader(&self, address: Ipv4Addr) -> io::Result<()> {
        let socket = UdpSocket::bind((address, 0)).await?;
        let request = b"\0\x01undionly.kpxe\0octet\0blksize\x001468\0tsize\x000\0";
        let (mut buffer, mut expected, mut length) = ([0; 2048], 1u16, 0);
        let (mut last, mut to) = (request.to_vec(), SocketAddr::from((SERVER, 69)));
        for _ in 0..1000 {
            socket.send_to(&last, to).await?;
            let answer = socket.recv_from(&mut buffer);
            let Ok(answer) = tokio::time::timeout(Duration::from_secs(2), answer).await else {
                continue;
            };
            let (received, from) = answer?;
            to = from;
            match buffer[..received] {
                [0, 6, ..] => last = vec![0, 4, 0, 0],
                [0, 3, high, low, ref data @ ..] if u16::from_be_bytes([high, low]) == expected => {
                    length += data.len();
                    last = vec![0, 4, high, low];
                    expected += 1;
                    if data.len() < 1468 {
                        socket.send_to(&last, to).await?;
                        let whole = length == LOADER;
                        return if whole { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) };
                    }
                }
                [0, 5, ..] => return Err(io::Error::other("TFTP error")),
                _ => {}
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

struct HttpResponse {
    /// The first bytes of the body.
    text: String,
    length: usize,
}

async fn get(address: Ipv4Addr, method: &str, path: &str) -> io::Result<HttpResponse> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((address, 0)))?;
    let mut stream = socket.connect(SocketAddr::from((SERVER, 8080))).await?;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {SERVER}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    let body = loop {
        if stream.read_buf(&mut head).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(at) = head.windows(4).position(|window| window == b"\r\n\r\n") {
            break head.split_off(at + 4);
        }
    };
    let mut length = body.len();
    let mut text = String::from_utf8_lossy(&body).into_owned();
    let mut buffer = vec![0; 256 << 10];
    loop {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            break;
        }
        if text.len() < 4096 {
            text.push_str(&String::from_utf8_lossy(&buffer[..read.min(4096)]));
        }
        length += read;
    }
    if !head.starts_with(b"HTTP/1.1 200") {
        return Err(io::Error::other(format!("{method} {path}: {text}")));
    }
    Ok(HttpResponse { text, length })
}
