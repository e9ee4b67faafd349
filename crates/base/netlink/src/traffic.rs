//! Limits of a link's bandwidth: a token bucket (`tbf`) for what it sends, and the redirection of what it receives.

use crate::{
    error::Error,
    net::RateLimit,
    socket::{Operation, Socket, change},
    wire::{CREATE, EXCLUSIVE, REPLACE},
};

const NEW_QDISC: u16 = 36;
const NEW_FILTER: u16 = 44;
const KIND: u16 = 1;
const OPTIONS: u16 = 2;

const ROOT: u32 = 0xffff_ffff;
/// The parent of the discipline of received packets.
const INGRESS: u32 = 0xffff_fff1;
/// The handle of the discipline of received packets.
const INGRESS_HANDLE: u32 = 0xffff_0000;

/// Encodes `struct tcmsg`.
fn fixed(index: u32, handle: u32, parent: u32, info: u32) -> [u8; 20] {
    let mut bytes = [0; 20];
    for (at, value) in [(4, index), (8, handle), (12, parent), (16, info)] {
        bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

/// Limits what a link sends.
pub(crate) fn limit(socket: &Socket, index: u32, limit: &RateLimit) -> Result<(), Error> {
    const PARAMETERS: u16 = 1;
    const RATE64: u16 = 4;
    const BURST: u16 = 6;
    let mut message = change(NEW_QDISC, CREATE | REPLACE, &fixed(index, 1 << 16, ROOT, 0));
    message.text(KIND, "tbf").nest(OPTIONS, |options| {
        options.attribute(PARAMETERS, &parameters(limit)).u32(BURST, limit.burst);
        if limit.bytes_per_second > u64::from(u32::MAX) {
            options.attribute(RATE64, &limit.bytes_per_second.to_ne_bytes());
        }
    });
    socket.change(Operation("limiting what is sent by link number", &index), &mut message)
}

/// Encodes `struct tc_tbf_qopt` without a peak rate.
fn parameters(limit: &RateLimit) -> [u8; 36] {
    const ETHERNET: u8 = 1;
    let mut bytes = [0; 36];
    bytes[1] = ETHERNET;
    let rate = u32::try_from(limit.bytes_per_second).unwrap_or(u32::MAX);
    bytes[8..12].copy_from_slice(&rate.to_ne_bytes());
    bytes[24..28].copy_from_slice(&limit.queue.to_ne_bytes());
    bytes
}

/// Redirects all packets that a link receives to what another link sends.
pub(crate) fn redirect(socket: &Socket, index: u32, to: u32) -> Result<(), Error> {
    let about = Operation("redirecting what is received by link number", &index);
    let ingress = fixed(index, INGRESS_HANDLE, INGRESS, 0);
    let mut message = change(NEW_QDISC, CREATE | EXCLUSIVE, &ingress);
    message.text(KIND, "ingress").nest(OPTIONS, |_| {});
    match socket.change(about, &mut message) {
        Err(error) if !error.is_exists() => return Err(error),
        _ => {}
    }
    const SELECTOR: u16 = 5;
    const ACTIONS: u16 = 7;
    const MIRRED_PARAMETERS: u16 = 2;
    const PRIORITY: u32 = 1 << 16;
    // All protocols, in network byte order.
    let protocols = u32::from(3_u16.to_be());
    let fixed = fixed(index, 0, INGRESS_HANDLE, PRIORITY | protocols);
    let mut message = change(NEW_FILTER, CREATE | EXCLUSIVE, &fixed);
    message.text(KIND, "u32").nest(OPTIONS, |options| {
        options.attribute(SELECTOR, &select_all()).nest(ACTIONS, |actions| {
            actions.nest(1, |action| {
                action.text(KIND, "mirred").nest(OPTIONS, |options| {
                    options.attribute(MIRRED_PARAMETERS, &mirred(to));
                });
            });
        });
    });
    socket.change(about, &mut message)
}

/// Encodes `struct tc_u32_sel` with one key that matches every packet.
fn select_all() -> [u8; 32] {
    const TERMINAL: u8 = 1;
    let mut bytes = [0; 32];
    (bytes[0], bytes[2]) = (TERMINAL, 1);
    bytes
}

/// Encodes `struct tc_mirred` for a redirection.
fn mirred(to: u32) -> [u8; 28] {
    const STOLEN: u32 = 4;
    const REDIRECT: u32 = 1;
    let mut bytes = [0; 28];
    for (at, value) in [(8, STOLEN), (20, REDIRECT), (24, to)] {
        bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}
