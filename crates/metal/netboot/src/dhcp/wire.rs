//! Decodes and encodes DHCP packets.
//!
//! The decoder of `dhcproto` panics on options of an unexpected length, which would end the server's task. This module
//! therefore passes on only options that the server reads and whose length is valid.

use std::ops::RangeInclusive;

use dhcproto::{Decodable, Decoder, Encodable, Encoder, error::EncodeError, v4::Message};

/// The minimum size of a BOOTP packet, which old firmware requires.
const SMALLEST: usize = 300;
/// The length of a packet's fixed part. The magic cookie follows it.
const OPTIONS: usize = 236;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
const PAD: u8 = 0;
const HOSTNAME: u8 = 12;
const RELAY: u8 = 82;
const ARCHITECTURE: u8 = 93;
const END: u8 = 255;

/// Returns the valid lengths of an option; `None` for an option that is not read.
fn lengths(code: u8) -> Option<RangeInclusive<usize>> {
    Some(match code {
        // Requested address, server identifier, subnet selection.
        50 | 54 | 118 => 4..=4,
        // Message type.
        53 => 1..=1,
        ARCHITECTURE => 2..=255,
        // Vendor class, client identifier, user class, machine identifier, relay agent information.
        HOSTNAME | 60 | 61 | 77 | 97 | RELAY => 1..=255,
        _ => return None,
    })
}

/// Decodes a packet; `None` if it is malformed.
pub(crate) fn decode(bytes: &[u8]) -> Option<Message> {
    let (head, options) = bytes.split_at_checked(OPTIONS + COOKIE.len())?;
    // The packet has no room for a longer hardware address.
    if head[2] > 16 || head[OPTIONS..] != COOKIE {
        return None;
    }
    let mut clean = head.to_vec();
    // The server name and file fields have no meaning in a request.
    clean[44..OPTIONS].fill(0);
    let mut rest = options;
    let mut present = [false; 256];
    while let [code, after @ ..] = rest {
        match *code {
            PAD => rest = after,
            END => break,
            code => {
                let (length, after) = after.split_first()?;
                let (value, after) = after.split_at_checked(usize::from(*length))?;
                rest = after;
                if !std::mem::replace(&mut present[usize::from(code)], true) {
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
        // The first of several architectures is used.
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

/// Returns `true` if the sub-options of the relay agent information have valid lengths.
fn is_relay_information(mut value: &[u8]) -> bool {
    while let [code, length, rest @ ..] = value {
        let length = usize::from(*length);
        let right = match code {
            // Link class; link selection and server override; flags.
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
    fn rejects_malformed_packets() {
        assert!(decode(&packet(&[(53, vec![1])], 6)).is_some());
        assert!(decode(&packet(&[(53, vec![1])], 17)).is_none());
        assert!(decode(&packet(&[], 6)[..200]).is_none());
        let mut invalid = packet(&[], 6);
        invalid[OPTIONS] = 0;
        assert!(decode(&invalid).is_none());
        let mut cut = packet(&[(53, vec![1])], 6);
        cut.pop();
        assert!(decode(&cut).is_none());
    }

    #[test]
    fn pads_replies_to_bootp_minimum() {
        assert_eq!(encode(&Message::default()).unwrap().len(), SMALLEST);
    }

    proptest::proptest! {
        #[test]
        fn decodes_arbitrary_bytes_without_panic(bytes in proptest::collection::vec(0u8..=255, 0..600)) {
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
        fn decodes_arbitrary_options_without_panic(options in proptest::collection::vec(
            (0u8..=255, proptest::collection::vec(0u8..16, 0..12)), 0..20)) {
            decode(&packet(&options, 6));
        }

        #[test]
        fn decodes_arbitrary_relay_information_without_panic(parts in proptest::collection::vec(
            (0u8..20, proptest::collection::vec(0u8..=255, 0..8)), 1..6)) {
            let value: Vec<u8> = parts
                .iter()
                .flat_map(|(code, value)| [&[*code, value.len() as u8], value.as_slice()].concat())
                .collect();
            decode(&packet(&[(RELAY, value)], 6));
        }
    }
}
