//! Sockets, lease file and probes around [`Machine`].

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4},
    path::PathBuf,
    sync::Arc,
};

use dhcproto::v4::{Message, MessageType};
use parking_lot::Mutex;
use rt::Clock;
use tokio::{net::UdpSocket, sync::Semaphore};

use super::{
    config::Config,
    leases::Leases,
    machine::{self, Action, Arrival, Machine, PXE_PORT},
    probe::Prober,
    wire,
};
use crate::{
    firmware::Firmware,
    interface::Interface,
    journal::{self, Journal},
    machines::Inventory,
};

const SERVER_PORT: u16 = 67;
/// The maximum number of concurrent probes, enough for a rack that powers on. If a discover is dropped, the client
/// sends it again.
const PROBES: usize = 1024;

/// The DHCP server for a set of interfaces. It runs until shutdown.
pub struct Server {
    machine: Mutex<Machine>,
    journal: Option<Journal>,
    clock: Arc<dyn Clock>,
    probes: Arc<Semaphore>,
    /// The records of machines, which learn the assigned addresses.
    inventory: Arc<Inventory>,
}

/// A socket with its interface and port.
struct Port {
    socket: UdpSocket,
    interface: Interface,
    port: u16,
    /// `None` if addresses are offered without a probe.
    prober: Option<Arc<Prober>>,
}

impl Server {
    /// Creates a server that continues with the leases in `lease_file`.
    pub fn new(
        config: Config,
        lease_file: Option<PathBuf>,
        clock: Arc<dyn Clock>,
        inventory: Arc<Inventory>,
    ) -> io::Result<Arc<Self>> {
        let (journal, leases) = match lease_file {
            None => (None, Leases::default()),
            Some(path) => {
                let leases = Leases::parse(&journal::read(&path)?);
                (Some(Journal::begin(path, leases.lines())?), leases)
            }
        };
        Ok(Arc::new(Self {
            machine: Mutex::new(Machine::new(config, leases)),
            journal,
            clock,
            probes: Arc::new(Semaphore::new(PROBES)),
            inventory,
        }))
    }

    /// Opens the ports of one interface and serves them until shutdown.
    pub fn start(self: &Arc<Self>, interface: &Interface, tasks: &rt::Tasks) -> io::Result<()> {
        let prober = if self.machine.lock().probes() {
            Some(Arc::new(Prober::new(interface).map_err(|error| {
                let why = format!("{error}; --no-ping gives addresses without a probe");
                io::Error::new(error.kind(), format!("probing addresses: {why}"))
            })?))
        } else {
            None
        };
        if let Some(prober) = prober.clone() {
            let name = format!("dhcp probes {}", interface.name);
            tasks.keep(&name, move || {
                let prober = prober.clone();
                async move { prober.listen().await }
            });
        }
        for port in [SERVER_PORT, PXE_PORT] {
            let socket = interface.udp(Ipv4Addr::UNSPECIFIED, port)?;
            let (interface, prober) = (interface.clone(), prober.clone());
            let port = Arc::new(Port { socket, interface, port, prober });
            let (server, owner) = (self.clone(), tasks.clone());
            let name = format!("dhcp {}:{}", port.interface.name, port.port);
            tasks.keep(&name, move || server.clone().run(port.clone(), owner.clone()));
        }
        Ok(())
    }

    fn now(&self) -> u64 {
        let now = self.clock.now().duration_since(std::time::UNIX_EPOCH);
        now.map(|since| since.as_secs()).unwrap_or_default()
    }

    async fn run(self: Arc<Self>, port: Arc<Port>, tasks: rt::Tasks) {
        let mut buffer = vec![0; 4096];
        loop {
            let (length, source) = match port.socket.recv_from(&mut buffer).await {
                Ok((length, SocketAddr::V4(source))) => (length, source),
                Ok(_) => continue,
                Err(error) => {
                    tracing::warn!(%error, interface = %port.interface.name, "receiving DHCP");
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                    continue;
                }
            };
            // A client that gets no reply sends its request again.
            let respond = self.respond(&buffer[..length], source, &port, &tasks);
            let _ = rt::catch("dhcp packet", source, respond).await;
        }
    }

    async fn respond(
        self: &Arc<Self>,
        packet: &[u8],
        source: SocketAddrV4,
        port: &Arc<Port>,
        tasks: &rt::Tasks,
    ) {
        let Some(request) = wire::decode(packet) else {
            return tracing::debug!(%source, "not a DHCP packet");
        };
        let server = port.interface.address;
        let arrival = Arrival { server, source, port: port.port };
        let action = self.decide(&request, arrival, None);
        let Action::Probe(address) = action else {
            return self.carry_out(&request, action, port).await;
        };
        let Ok(permit) = self.probes.clone().try_acquire_owned() else {
            return self.inventory.metrics.dhcp_dropped.inc();
        };
        let (server, port) = (self.clone(), port.clone());
        tasks.spawn_until_shutdown("dhcp probe", async move {
            let _permit = permit;
            server.probe(&request, arrival, address, &port).await;
        });
    }

    /// Probes addresses until one is free, and answers with it.
    async fn probe(&self, request: &Message, arrival: Arrival, first: Ipv4Addr, port: &Port) {
        let mut address = first;
        for _ in 0..8 {
            let result = match &port.prober {
                Some(prober) => prober.is_in_use(address).await,
                None => Ok(false),
            };
            let in_use = match result {
                Ok(in_use) => in_use,
                Err(error) => {
                    tracing::debug!(%address, %error, "probing failed; assuming that the address is free");
                    false
                }
            };
            match self.decide(request, arrival, Some((address, in_use))) {
                Action::Probe(next) => address = next,
                action => return self.carry_out(request, action, port).await,
            }
        }
    }

    /// Decides about a packet and saves a changed lease before the reply is sent.
    fn decide(
        &self,
        request: &Message,
        arrival: Arrival,
        probed: Option<(Ipv4Addr, bool)>,
    ) -> Action {
        let mut machine = self.machine.lock();
        let now = self.now();
        if let Some((address, in_use)) = probed {
            machine.probed(address, in_use, now);
        }
        let action = machine.handle(request, arrival, now);
        let changed = match &action {
            Action::Save(address) => Some(*address),
            Action::Reply { changed, .. } => *changed,
            _ => None,
        };
        if let (Some(address), Some(journal)) = (changed, &self.journal)
            && let leases = machine.leases()
            && let Err(error) = journal.add(&leases.line(address), leases.len(), leases.lines())
        {
            tracing::error!(%error, "saving a lease");
        }
        action
    }

    async fn carry_out(&self, request: &Message, action: Action, port: &Port) {
        let Action::Reply { message, to, .. } = action else { return };
        self.record(request, &message);
        let bytes = match wire::encode(&message) {
            Ok(bytes) => bytes,
            Err(error) => return tracing::error!(%error, "encoding a DHCP reply"),
        };
        tracing::info!(
            kind = ?message.opts().msg_type(), address = %message.yiaddr(), %to,
            client = ?message.chaddr(), "DHCP"
        );
        if let Err(error) =
            port.socket.send_to(&bytes, SocketAddr::new(IpAddr::V4(*to.ip()), to.port())).await
        {
            tracing::warn!(%error, %to, interface = %port.interface.name, "sending a DHCP reply");
        }
    }

    /// Records a reply in the inventory of machines.
    fn record(&self, request: &Message, reply: &Message) {
        let metrics = &self.inventory.metrics;
        let done = match reply.opts().msg_type() {
            Some(MessageType::Offer) => {
                metrics.dhcp_offers.inc();
                false
            }
            Some(MessageType::Ack) => {
                metrics.dhcp_acks.inc();
                true
            }
            _ => return metrics.dhcp_naks.inc(),
        };
        let Some(mac) = machine::client(request) else { return };
        let address = Some(reply.yiaddr()).filter(|address| done && !address.is_unspecified());
        self.inventory.record_dhcp(&mac, address, Firmware::of(request), done);
    }
}
