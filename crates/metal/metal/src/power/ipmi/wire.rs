//! RMCP+ packets: frames, keys, integrity and encryption. Pure.
//!
//! Supported cipher suites are 17 (SHA-256) and 3 (SHA-1), both with AES-CBC-128.

use aws_lc_rs::{
    cipher::{
        AES_128, DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext,
        UnboundCipherKey,
    },
    constant_time, hmac,
    iv::FixedLength,
};

pub(super) const OPEN_REQUEST: u8 = 0x10;
pub(super) const OPEN_RESPONSE: u8 = 0x11;
pub(super) const RAKP1: u8 = 0x12;
pub(super) const RAKP2: u8 = 0x13;
pub(super) const RAKP3: u8 = 0x14;
pub(super) const RAKP4: u8 = 0x15;
/// The payload type of an IPMI message.
pub(super) const MESSAGE: u8 = 0;
/// The RMCP header: version 6, no sequence, no acknowledgement, class IPMI, and the format of RMCP+.
const HEADER: [u8; 5] = [6, 0, 0xff, 7, 6];
const SEALED: u8 = 0xc0;
const NEXT_HEADER: u8 = 7;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Suite {
    Sha256,
    Sha1,
}

impl Suite {
    fn algorithm(self) -> hmac::Algorithm {
        match self {
            Self::Sha256 => hmac::HMAC_SHA256,
            Self::Sha1 => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
        }
    }

    /// Returns the algorithm numbers for authentication, integrity and confidentiality.
    pub(super) fn numbers(self) -> [u8; 3] {
        match self {
            Self::Sha256 => [3, 4, 1],
            Self::Sha1 => [1, 1, 1],
        }
    }

    /// Returns the length of a packet's integrity code.
    fn integrity(self) -> usize {
        match self {
            Self::Sha256 => 16,
            Self::Sha1 => 12,
        }
    }

    pub(super) fn mac(self, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
        let mut context = hmac::Context::with_key(&hmac::Key::new(self.algorithm(), key));
        parts.iter().for_each(|part| context.update(part));
        context.sign().as_ref().to_vec()
    }
}

/// The values that both sides exchange when a session starts.
#[derive(Clone, Debug)]
pub(super) struct Exchange {
    pub(super) suite: Suite,
    pub(super) console: [u8; 4],
    pub(super) bmc: [u8; 4],
    pub(super) console_random: [u8; 16],
    pub(super) bmc_random: [u8; 16],
    pub(super) guid: [u8; 16],
    /// The requested privilege, with the flag for lookup by name only.
    pub(super) role: u8,
    pub(super) user: Vec<u8>,
    pub(super) password: Vec<u8>,
}

impl Exchange {
    fn name(&self) -> Vec<u8> {
        let length = u8::try_from(self.user.len()).unwrap_or(u8::MAX);
        [&[self.role, length], self.user.as_slice()].concat()
    }

    /// Returns the controller's proof of the password.
    pub(super) fn rakp2(&self) -> Vec<u8> {
        let parts: [&[u8]; 6] = [
            &self.console,
            &self.bmc,
            &self.console_random,
            &self.bmc_random,
            &self.guid,
            &self.name(),
        ];
        self.suite.mac(&self.password, &parts)
    }

    /// Returns our proof of the password.
    pub(super) fn rakp3(&self) -> Vec<u8> {
        self.suite.mac(&self.password, &[&self.bmc_random, &self.console, &self.name()])
    }

    /// Returns the controller's proof of the session key.
    pub(super) fn rakp4(&self) -> Vec<u8> {
        let mut proof =
            self.suite.mac(&self.session_key(), &[&self.console_random, &self.bmc, &self.guid]);
        proof.truncate(self.suite.integrity());
        proof
    }

    fn session_key(&self) -> Vec<u8> {
        let parts: [&[u8]; 3] = [&self.console_random, &self.bmc_random, &self.name()];
        self.suite.mac(&self.password, &parts)
    }

    pub(super) fn keys(&self) -> Keys {
        let key = self.session_key();
        let derive = |n: u8| self.suite.mac(&key, &[&[n; 20]]);
        Keys { suite: self.suite, integrity: derive(1), secrecy: derive(2) }
    }
}

pub(super) fn is_equal(one: &[u8], other: &[u8]) -> bool {
    constant_time::verify_slices_are_equal(one, other).is_ok()
}

/// Encodes a packet without encryption.
pub(super) fn open_frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = HEADER.to_vec();
    out.push(kind);
    // Session and sequence are zero before a session.
    out.extend([0; 8]);
    out.extend(length(payload));
    out.extend(payload);
    out
}

fn length(payload: &[u8]) -> [u8; 2] {
    u16::try_from(payload.len()).unwrap_or(u16::MAX).to_le_bytes()
}

/// Decodes the type and payload of an unencrypted packet.
pub(super) fn read_open(packet: &[u8]) -> Option<(u8, &[u8])> {
    let rest = packet.strip_prefix(&HEADER)?;
    let (head, payload) = rest.split_at_checked(11)?;
    let length = usize::from(u16::from_le_bytes([head[9], head[10]]));
    Some((head[0] & 0x3f, payload.get(..length)?))
}

/// The keys of a session.
pub(super) struct Keys {
    suite: Suite,
    integrity: Vec<u8>,
    secrecy: Vec<u8>,
}

impl Keys {
    fn cipher(&self) -> Option<UnboundCipherKey> {
        UnboundCipherKey::new(&AES_128, self.secrecy.get(..16)?).ok()
    }

    /// Encrypts a message for a session and signs the packet. `iv` is random.
    pub(super) fn seal(
        &self,
        session: [u8; 4],
        sequence: u32,
        message: &[u8],
        iv: [u8; 16],
    ) -> Option<Vec<u8>> {
        let mut body = message.to_vec();
        let padding = u8::try_from((16 - (message.len() + 1) % 16) % 16).ok()?;
        body.extend(1..=padding);
        body.push(padding);
        let context = EncryptionContext::Iv128(FixedLength::from(&iv));
        EncryptingKey::cbc(self.cipher()?).ok()?.less_safe_encrypt(&mut body, context).ok()?;
        let payload = [&iv[..], &body].concat();
        let mut out = HEADER.to_vec();
        out.push(SEALED | MESSAGE);
        out.extend(session);
        out.extend(sequence.to_le_bytes());
        out.extend(length(&payload));
        out.extend(payload);
        // The authenticated part is padded to a multiple of four bytes.
        let padding = (4 - (out.len() - 4 + 2) % 4) % 4;
        out.extend(std::iter::repeat_n(0xff, padding));
        out.extend([u8::try_from(padding).ok()?, NEXT_HEADER]);
        let mut signature = self.suite.mac(&self.integrity, &[&out[4..]]);
        signature.truncate(self.suite.integrity());
        out.extend(signature);
        Some(out)
    }

    /// Decodes an encrypted packet to the session id and the message.
    pub(super) fn unseal(&self, packet: &[u8]) -> Option<([u8; 4], Vec<u8>)> {
        let (signed, signature) =
            packet.split_at_checked(packet.len().checked_sub(self.suite.integrity())?)?;
        let mut expected = self.suite.mac(&self.integrity, &[signed.get(4..)?]);
        expected.truncate(self.suite.integrity());
        if !is_equal(&expected, signature) {
            return None;
        }
        let rest = signed.strip_prefix(&HEADER)?;
        let (head, rest) = rest.split_at_checked(11)?;
        if head[0] != SEALED | MESSAGE {
            return None;
        }
        let length = usize::from(u16::from_le_bytes([head[9], head[10]]));
        let (iv, body) = rest.get(..length)?.split_first_chunk::<16>()?;
        if body.is_empty() || body.len() % 16 != 0 {
            return None;
        }
        let mut body = body.to_vec();
        let context = DecryptionContext::Iv128(FixedLength::from(iv));
        DecryptingKey::cbc(self.cipher()?).ok()?.decrypt(&mut body, context).ok()?;
        let padding = usize::from(body.pop()?);
        body.truncate(body.len().checked_sub(padding)?);
        Some((head[1..5].try_into().ok()?, body))
    }
}

fn checksum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0u8, |sum, byte| sum.wrapping_sub(*byte))
}

const CONTROLLER: u8 = 0x20;
const CONSOLE: u8 = 0x81;

/// Encodes a command as an IPMI message.
pub(super) fn request(function: u8, sequence: u8, command: u8, data: &[u8]) -> Vec<u8> {
    message([CONTROLLER, function << 2], [CONSOLE, sequence << 2, command], data)
}

#[cfg(test)]
pub(super) fn response(function: u8, sequence: u8, command: u8, data: &[u8]) -> Vec<u8> {
    message([CONSOLE, (function | 1) << 2], [CONTROLLER, sequence << 2, command], data)
}

fn message(to: [u8; 2], from: [u8; 3], data: &[u8]) -> Vec<u8> {
    let mut out = to.to_vec();
    out.push(checksum(&to));
    let start = out.len();
    out.extend(from);
    out.extend(data);
    out.push(checksum(&out[start..]));
    out
}

/// A decoded IPMI message.
pub(super) struct Message<'a> {
    /// The network function.
    pub(super) function: u8,
    pub(super) sequence: u8,
    pub(super) command: u8,
    /// The data; that of a response starts with the completion code.
    pub(super) data: &'a [u8],
}

/// Decodes a message.
pub(super) fn read_message(bytes: &[u8]) -> Option<Message<'_>> {
    let [_, function, _, _, sequence, command, data @ .., _] = bytes else { return None };
    let is_valid = checksum(&bytes[..3]) == 0 && checksum(&bytes[3..]) == 0;
    let (function, sequence, command) = (function >> 2, sequence >> 2, *command);
    is_valid.then_some(Message { function, sequence, command, data })
}
