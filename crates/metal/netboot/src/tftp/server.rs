//! The TFTP server: the port for requests, and a socket and task for each transfer.

use std::{
    fs::File,
    io::{self, Read},
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use futures_util::future::{AbortHandle, Abortable};
use serve::ClientLimits;
use tokio::net::UdpSocket;

use super::{
    packet::{self, Mode, Packet, ReadRequest},
    pending::{PendingRequest, PendingRequests},
    transfer::{Source, Step, Transfer, netascii},
};
use crate::{
    interface::Interface,
    machines::{Inventory, Stage},
    paths,
};

const PORT: u16 = 69;
/// The maximum number of transfers. A client that gets no answer sends its request again.
const TRANSFERS: usize = 1024;
/// The maximum number of transfers of one client, so that its half-open transfers do not exclude other clients.
const OF_ONE_CLIENT: usize = 16;
/// The maximum size in bytes of a file in netascii mode, which is converted in memory.
const MAX_TEXT: u64 = 4 << 20;
/// The maximum duration of a transfer.
const LONGEST: Duration = Duration::from_secs(1800);

const NOT_FOUND: u16 = 1;
const ACCESS_VIOLATION: u16 = 2;
const ILLEGAL: u16 = 4;

/// The error packet for a request that is not served.
struct Refusal {
    code: u16,
    text: &'static str,
}

/// A read-only TFTP server for the files below one directory.
pub struct Server {
    root: PathBuf,
    /// The content of `autoexec.ipxe` if the root has no such file.
    autoexec: Option<String>,
    limits: Arc<ClientLimits>,
    pending: Arc<PendingRequests>,
    /// The records of machines, which learn the fetched files.
    inventory: Arc<Inventory>,
}

impl Server {
    /// Creates a server for the files below `root`. It opens no socket yet.
    pub fn new(
        root: impl Into<PathBuf>,
        autoexec: Option<String>,
        inventory: Arc<Inventory>,
    ) -> Arc<Self> {
        let limits = ClientLimits::new(TRANSFERS, OF_ONE_CLIENT);
        Arc::new(Self { root: root.into(), autoexec, limits, pending: Arc::default(), inventory })
    }

    /// Opens the port on one interface and serves it until shutdown.
    pub fn start(self: &Arc<Self>, interface: &Interface, tasks: &rt::Tasks) -> io::Result<()> {
        let socket = interface.udp(interface.address, PORT)?;
        let (server, owner, interface) = (self.clone(), tasks.clone(), interface.clone());
        let (name, socket) = (format!("tftp {}", interface.name), Arc::new(socket));
        tasks.keep(&name, move || {
            server.clone().run(socket.clone(), interface.clone(), owner.clone())
        });
        Ok(())
    }

    async fn run(self: Arc<Self>, socket: Arc<UdpSocket>, interface: Interface, tasks: rt::Tasks) {
        let mut buffer = vec![0; 2048];
        loop {
            let (length, client) = match socket.recv_from(&mut buffer).await {
                Ok(received) => received,
                Err(error) => {
                    tracing::warn!(%error, "receiving TFTP");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
            };
            let parse = || Packet::parse(&buffer[..length]);
            let Ok(Some(packet)) = rt::catch_sync("tftp packet", client, parse) else { continue };
            let first = match &packet {
                Packet::Read(request) => match self.pending.begin(client, request) {
                    None => continue,
                    first => first,
                },
                Packet::Write => None,
                Packet::Ack(_) | Packet::Error(..) => continue,
            };
            let Some(permit) = self.limits.try_enter(client.ip()) else {
                tracing::debug!(
                    %client, "more than {TRANSFERS} transfers, or {OF_ONE_CLIENT} of one client"
                );
                self.inventory.metrics.tftp_failed.inc();
                // Senders of requests may be false. A client that sends its request again finds a place.
                let of_client = Some(client.ip()).filter(|_| !self.limits.is_full());
                self.pending.end_oldest(of_client);
                continue;
            };
            let (first, registration) = first.unzip();
            let registration = registration.unwrap_or_else(|| AbortHandle::new_pair().1);
            let (server, interface) = (self.clone(), interface.clone());
            let transfer = async move {
                let _permit = permit;
                let work = Box::pin(server.serve(packet, first, client, &interface));
                match tokio::time::timeout(LONGEST, work).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::warn!(%client, %error, "TFTP transfer"),
                    Err(_) => tracing::warn!(%client, "TFTP transfer took too long"),
                }
            };
            // Boxed, because each enclosing future would reserve room for it again.
            let transfer = Abortable::new(Box::pin(transfer), registration);
            tasks.spawn_until_shutdown("tftp transfer", async move {
                let _ = transfer.await;
            });
        }
    }

    async fn serve(
        &self,
        packet: Packet,
        first: Option<PendingRequest>,
        client: SocketAddr,
        interface: &Interface,
    ) -> io::Result<()> {
        let socket = interface.udp_of_one(interface.address, 0)?;
        // Packets from other addresses do not belong to this transfer.
        socket.connect(client).await?;
        let Packet::Read(request) = packet else {
            socket.send(&packet::error(ACCESS_VIOLATION, "read-only")).await?;
            return Ok(());
        };
        let source = match self.open(&request) {
            Ok(source) => source,
            Err(Refusal { code, text }) => {
                tracing::warn!(%client, name = request.name, "TFTP: {text}");
                self.inventory.metrics.tftp_failed.inc();
                socket.send(&packet::error(code, text)).await?;
                return Ok(());
            }
        };
        let name = request.name.clone();
        let transfer = Transfer::new(source, &request);
        if run_transfer(&socket, transfer, first).await? {
            tracing::info!(%client, name, "sent by TFTP");
            self.inventory.metrics.tftp_sent.inc();
            self.inventory.record_fetch(client.ip(), Stage::Firmware, &name);
        } else {
            tracing::info!(%client, name, "TFTP transfer given up by the client");
        }
        Ok(())
    }

    fn open(&self, request: &ReadRequest) -> Result<Source, Refusal> {
        // Some firmware uses Windows path separators.
        let name = request.name.replace('\\', "/");
        let Some(path) = paths::existing(&self.root, &name) else {
            return match &self.autoexec {
                Some(script) if name.trim_start_matches('/') == "autoexec.ipxe" => {
                    Ok(Source::Bytes(script.clone().into_bytes()))
                }
                _ => Err(Refusal { code: NOT_FOUND, text: "file not found" }),
            };
        };
        let denied = |text| move |_| Refusal { code: ACCESS_VIOLATION, text };
        let mut file = File::open(&path).map_err(denied("cannot open the file"))?;
        let metadata = file.metadata().map_err(denied("cannot open the file"))?;
        if !metadata.is_file() {
            return Err(Refusal { code: NOT_FOUND, text: "not a file" });
        }
        if request.mode == Mode::Octet {
            return Ok(Source::File(file, metadata.len()));
        }
        if metadata.len() > MAX_TEXT {
            let text = "too large for netascii; use octet (binary) mode";
            return Err(Refusal { code: ILLEGAL, text });
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(denied("cannot read the file"))?;
        Ok(Source::Bytes(netascii(&bytes)))
    }
}

/// Runs a transfer to its end; returns `false` if the client ended it.
async fn run_transfer(
    socket: &UdpSocket,
    mut transfer: Transfer,
    mut first: Option<PendingRequest>,
) -> io::Result<bool> {
    let mut step = Step::Send;
    loop {
        match step {
            Step::Send => {
                for packet in transfer.packets() {
                    socket.send(&packet?).await?;
                }
            }
            Step::Wait => {}
            Step::Done => return Ok(true),
            Step::GiveUp => return Err(io::ErrorKind::TimedOut.into()),
        }
        step = match tokio::time::timeout(transfer.timeout(), receive(socket)).await {
            Err(_) => transfer.timed_out(),
            Ok(packet) => match packet.inspect(|_| first = None)? {
                Some(Packet::Ack(number)) => transfer.acknowledged(number),
                // iPXE and EDK2 first request the size only, and end that transfer with an error.
                Some(Packet::Error(..)) => return Ok(false),
                _ => Step::Wait,
            },
        };
    }
}

/// Receives the next packet. The buffer is local, so a waiting transfer holds none.
async fn receive(socket: &UdpSocket) -> io::Result<Option<Packet>> {
    loop {
        socket.readable().await?;
        let mut buffer = [0; 512];
        match socket.try_recv(&mut buffer) {
            Ok(length) => return Ok(Packet::parse(&buffer[..length])),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
