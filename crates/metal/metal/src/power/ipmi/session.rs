//! An IPMI session with a controller.

use std::{net::SocketAddr, time::Duration};

use tokio::net::UdpSocket;

use super::{
    super::bmc::Bmc,
    error::Error,
    wire::{self, Exchange, Keys, Suite},
};

const PORT: u16 = 623;
/// The number of attempts. Controllers are slow, and packets get lost.
const TRIES: u32 = 4;
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(1500);
const ADMINISTRATOR: u8 = 4;
/// Looks up the user by name, whatever privilege is requested.
const BY_NAME: u8 = 0x10;
const APPLICATION: u8 = 6;

/// A session that encrypts and signs every packet. Close it, because controllers support only a few sessions.
pub struct Session {
    socket: UdpSocket,
    keys: Keys,
    /// The controller's id of the session.
    controller_id: [u8; 4],
    /// Our id of the session.
    console_id: [u8; 4],
    sequence: u32,
}

fn status(code: u8) -> String {
    let name = match code {
        0x01 => "it has no free session",
        0x04 | 0x10..=0x12 => "it does not support this cipher suite",
        0x09 => "the user lacks the administrator privilege",
        0x0d => "it does not know the user",
        0x0f => "the password is wrong",
        _ => return format!("status {code:#04x}"),
    };
    name.to_owned()
}

/// Returns the meaning of a command's completion code.
fn completion(code: u8) -> String {
    let name = match code {
        0xc0 => "it is busy",
        0xc1 => "it does not know this command",
        0xc3 => "it timed out",
        0xcc => "it does not know this setting",
        0xd4 => "the user lacks the privilege",
        0xd5 => "its current state does not allow the command",
        _ => return format!("completion code {code:#04x}"),
    };
    name.to_owned()
}

impl Session {
    /// Opens a session with the strongest cipher suite of the controller.
    pub async fn open(bmc: &Bmc) -> Result<Self, Error> {
        match Self::open_with(bmc, Suite::Sha256).await {
            // Some controllers reject an unknown suite, others do not answer.
            Err(Error::Refused { .. } | Error::Silent(_)) => {
                Self::open_with(bmc, Suite::Sha1).await
            }
            result => result,
        }
    }

    pub(super) async fn open_with(bmc: &Bmc, suite: Suite) -> Result<Self, Error> {
        if bmc.user.len() > 16 || bmc.password.len() > 20 {
            return Err(Error::TooLong);
        }
        let socket = connect(&bmc.address).await.map_err(Error::Socket)?;
        let console_id: [u8; 4] = rt::random::<u32>().max(1).to_le_bytes();
        let [authentication, integrity, secrecy] = suite.numbers();
        let algorithm = |kind: u8, number: u8| [kind, 0, 0, 8, number, 0, 0, 0];
        let payload = [
            &[0, ADMINISTRATOR, 0, 0],
            &console_id[..],
            &algorithm(0, authentication),
            &algorithm(1, integrity),
            &algorithm(2, secrecy),
        ]
        .concat();
        let what = "a session request";
        let response =
            request(&socket, what, wire::OPEN_REQUEST, &payload, wire::OPEN_RESPONSE).await?;
        let controller_id = response.get(8..12).and_then(|id| id.try_into().ok());
        let mut exchange = Exchange {
            suite,
            console: console_id,
            bmc: controller_id.ok_or(Error::Malformed(what))?,
            console_random: rt::random(),
            bmc_random: [0; 16],
            guid: [0; 16],
            role: BY_NAME | ADMINISTRATOR,
            user: bmc.user.clone().into_bytes(),
            password: bmc.password.clone().into_bytes(),
        };
        authenticate(&socket, &mut exchange).await?;
        let (keys, controller_id) = (exchange.keys(), exchange.bmc);
        let mut session = Self { socket, keys, controller_id, console_id, sequence: 0 };
        session.command("administrator privilege", APPLICATION, 0x3b, &[ADMINISTRATOR]).await?;
        Ok(session)
    }

    /// Sends a command until a response arrives, and returns its data.
    pub async fn command(
        &mut self,
        what: &'static str,
        function: u8,
        command: u8,
        data: &[u8],
    ) -> Result<Vec<u8>, Error> {
        let mut buffer = [0; 1024];
        for _ in 0..TRIES {
            self.sequence += 1;
            let number = (self.sequence & 0x3f) as u8;
            let message = wire::request(function, number, command, data);
            let packet = self.keys.seal(self.controller_id, self.sequence, &message, rt::random());
            self.socket.send(&packet.ok_or(Error::Crypto)?).await.map_err(Error::Socket)?;
            let response = async {
                loop {
                    let length = self.socket.recv(&mut buffer).await.map_err(Error::Socket)?;
                    // Packets of other sessions and answers to other commands are ignored.
                    let Some((session, response)) = self.keys.unseal(&buffer[..length]) else {
                        continue;
                    };
                    if let Some(message) = wire::read_message(&response)
                        && session == self.console_id
                        && (message.function, message.sequence) == (function | 1, number)
                        && message.command == command
                    {
                        return Ok(message.data.to_vec());
                    }
                }
            };
            let Ok(response) = tokio::time::timeout(RESPONSE_TIMEOUT, response).await else {
                continue;
            };
            return match response?.split_first() {
                Some((0, data)) => Ok(data.to_vec()),
                Some((code, _)) => Err(Error::Refused { what, why: completion(*code) }),
                None => Err(Error::Malformed(what)),
            };
        }
        Err(Error::Silent(what))
    }

    /// Ends the session. A failure has no consequences.
    pub async fn close(mut self) {
        let id = self.controller_id;
        if let Err(error) = self.command("close session", APPLICATION, 0x3c, &id).await {
            tracing::debug!(%error, "closing an IPMI session");
        }
    }
}

async fn connect(address: &str) -> std::io::Result<UdpSocket> {
    // The address may contain a port.
    let mut addresses: Vec<SocketAddr> = match tokio::net::lookup_host(address).await {
        Ok(addresses) => addresses.collect(),
        Err(_) => tokio::net::lookup_host((address, PORT)).await?.collect(),
    };
    let target = addresses.pop().ok_or(std::io::ErrorKind::NotFound)?;
    let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(target).await?;
    Ok(socket)
}

/// Sends a packet until a response of the wanted type arrives, whose status must be zero.
async fn request(
    socket: &UdpSocket,
    what: &'static str,
    kind: u8,
    payload: &[u8],
    response_kind: u8,
) -> Result<Vec<u8>, Error> {
    let mut buffer = [0; 1024];
    for _ in 0..TRIES {
        socket.send(&wire::open_frame(kind, payload)).await.map_err(Error::Socket)?;
        let response = async {
            loop {
                let length = socket.recv(&mut buffer).await.map_err(Error::Socket)?;
                if let Some((kind, payload)) = wire::read_open(&buffer[..length])
                    && kind == response_kind
                {
                    return Ok(payload.to_vec());
                }
            }
        };
        let Ok(response) = tokio::time::timeout(RESPONSE_TIMEOUT, response).await else { continue };
        let response = response?;
        return match response.get(1) {
            Some(0) => Ok(response),
            Some(code) => Err(Error::Refused { what, why: status(*code) }),
            None => Err(Error::Malformed(what)),
        };
    }
    Err(Error::Silent(what))
}

/// Proves that both sides know the password.
async fn authenticate(socket: &UdpSocket, exchange: &mut Exchange) -> Result<(), Error> {
    let what = "the user's name";
    let length = u8::try_from(exchange.user.len()).map_err(|_| Error::TooLong)?;
    let first = [
        &[0; 4],
        &exchange.bmc[..],
        &exchange.console_random,
        &[exchange.role, 0, 0, length],
        &exchange.user,
    ]
    .concat();
    let response = request(socket, what, wire::RAKP1, &first, wire::RAKP2).await?;
    let part = |from: usize| response.get(from..from + 16).and_then(|part| part.try_into().ok());
    exchange.bmc_random = part(8).ok_or(Error::Malformed(what))?;
    exchange.guid = part(24).ok_or(Error::Malformed(what))?;
    if !wire::is_equal(response.get(40..).unwrap_or_default(), &exchange.rakp2()) {
        return Err(Error::Password);
    }
    let what = "the proof of the password";
    let third = [&[0; 4], &exchange.bmc[..], &exchange.rakp3()].concat();
    let response = request(socket, what, wire::RAKP3, &third, wire::RAKP4).await?;
    if !wire::is_equal(response.get(8..).unwrap_or_default(), &exchange.rakp4()) {
        return Err(Error::Password);
    }
    Ok(())
}
