//! Packets to and from bytes.
//!
//! The decoder of `dhcproto` asserts the lengths of options, so that one wrong packet would end the server's
//! task. It is given only options that are read here, and only such as have the length that they must have.

use std::ops::RangeInclusive;

use dhcproto::{Decodable, Decoder, Encodable, Encoder, error::EncodeError, v4::Message};

/// BOOTP's smallest packet, which old firmware insists on.
const SMALLEST: usize = 300;
/// Where the fixed part of a packet ends, and the four bytes that mark options begin.
const OPTIONS: usize = 236;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
const PAD: u8 = 0;
const HOSTNAME: u8 = 12;
const RELAY: u8 = 82;
const ARCHITECTURE: u8 = 93;
const END: u8 = 255;

/// The lengths that an option may have; `None` for one that is not read.
fn lengths(code: u8) -> Option<RangeInclusive<usize>> {
    Some(match code {
        // The requested address, the server's identifier, the subnet selected.
        50 | 54 | 118 => 4..=4,
        // The message's type.
        53 => 1..=1,
        ARCHITECTURE => 2..=255,
        // Class, client and user identifiers, the machine's identifier, the relay's information.
        HOSTNAME | 60 | 61 | 77 | 97 | RELAY => 1..=255,
        _ => return None,
    })
}

/// A packet, if it is one.
pub(crate) fn decode(bytes: &[u8]) -> Option<Message> {
    let (head, options) = bytes.split_at_checked(OPTIONS + COOKIE.len())?;
    // A longer hardware address has no room in the packet.
    if head[2] > 16 || head[OPTIONS..] != COOKIE {
        return None;
    }
    let mut clean = head.to_vec();
    // The names of server and file say nothing in a request.
    clean[44..OPTIONS].fill(0);
    let mut rest = options;
    let mut seen = [false; 256];
    while let [code, after @ ..] = rest {
        match *code {
            PAD => rest = after,
            END => break,
            code => {
                let (length, after) = after.split_first()?;
                let (value, after) = after.split_at_checked(usize::from(*length))?;
                rest = after;
                if !std::mem::replace(&mut seen[usize::from(code)], true) {
                    keep(&mut clean, code, value);
                }
            }
        }
    }
    clean.push(END);
    Message::decode(&mut Decoder::new(&clean)).ok()
}

fn keep(clean: &mut Vec<u8>, code: u8, value: &[u8]) {
    let value = match code {
        // Of several architectures the first counts.
        ARCHITECTURE => &value[..value.len().min(2)],
        _ => value,
    };
    let fits = lengths(code).is_some_and(|lengths| lengths.contains(&value.len()));
    let text = code != HOSTNAME || value.is_ascii();
    let relayed = code != RELAY || is_relay_information(value);
    if fits && text && relayed {
        clean.push(code);
        clean.push(u8::try_from(value.len()).unwrap_or(u8::MAX));
        clean.extend(value);
    }
}

/// Whether the parts of a relay's information have the lengths that they must have.
fn is_relay_information(mut value: &[u8]) -> bool {
    while let [code, length, rest @ ..] = value {
        let length = usize::from(*length);
        let right = match code {
            // The link's class; link selection and server override; flags.
            4 | 5 | 11 => length == 4,
            10 => length == 1,
            _ => true,
        };
        if !right || length > rest.len() {
            return false;
        }
        value = &rest[length..];
    }
    value.is_empty()
}

pub(crate) fn encode(message: &Message) -> Result<Vec<u8>, EncodeError> {
    let mut bytes = Vec::with_capacity(SMALLEST);
    message.encode(&mut Encoder::new(&mut bytes))?;
    bytes.resize(bytes.len().max(SMALLEST), PAD);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(options: &[(u8, Vec<u8>)], hlen: u8) -> Vec<u8> {
        let mut bytes = vec![0; OPTIONS];
        bytes[..3].copy_from_slice(&[1, 1, hlen]);
        bytes.extend(COOKIE);
        for (code, value) in options {
            bytes.extend([*code, value.len() as u8]);
            bytes.extend(value);
        }
        bytes
    }

    #[test]
    fn what_is_no_packet_is_refused() {
        assert!(decode(&packet(&[(53, vec![1])], 6)).is_some());
        assert!(decode(&packet(&[(53, vec![1])], 17)).is_none());
        assert!(decode(&packet(&[], 6)[..200]).is_none());
        let mut wrong = packet(&[], 6);
        wrong[OPTIONS] = 0;
        assert!(decode(&wrong).is_none());
        let mut cut = packet(&[(53, vec![1])], 6);
        cut.pop();
        assert!(decode(&cut).is_none());
    }

    #[test]
    fn replies_are_no_shorter_than_bootp() {
        assert_eq!(encode(&Message::default()).unwrap().len(), SMALLEST);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(0u8..=255, 0..600)) {
            let mut bytes = bytes;
            if bytes.len() > OPTIONS + 4 {
                bytes[2] %= 20;
                bytes[OPTIONS..OPTIONS + 4].copy_from_slice(&COOKIE);
            }
            if let Some(message) = decode(&bytes) {
                proptest::prop_assert!(message.chaddr().len() <= 16);
            }
        }

        #[test]
        fn no_options_panic(options in proptest::collection::vec(
            (0u8..=255, proptest::collection::vec(0u8..16, 0..12)), 0..20)) {
            decode(&packet(&options, 6));
        }

        #[test]
        fn no_relay_information_panics(parts in proptest::collection::vec(
            (0u8..20, proptest::collection::vec(0u8..=255, 0..8)), 1..6)) {
            let value: Vec<u8> = parts
                .iter()
                .flat_map(|(code, value)| [&[*code, value.len() as u8], value.as_slice()].concat())
                .collect();
            decode(&packet(&[(RELAY, value)], 6));
        }
    }
}
