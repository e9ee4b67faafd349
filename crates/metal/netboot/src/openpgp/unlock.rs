//! Extracts the secret values of a key, and decrypts them with a passphrase if necessary.

use aws_lc_rs::{
    cipher::{
        AES_128, AES_128_KEY_LEN, AES_192, AES_192_KEY_LEN, AES_256, AES_256_KEY_LEN,
        DecryptingKey, DecryptionContext, UnboundCipherKey,
    },
    digest,
    iv::FixedLength,
};

use super::{
    error::Error,
    key::{Algorithm, SecretKey},
    packet::Reader,
};

/// The decrypted secret part of a key.
pub(super) struct Parts(Vec<u8>);

/// The usage octet, which describes the protection of the secret part.
const PLAIN: u8 = 0;
const SHA1_SUM: u8 = 254;
const SHORT_SUM: u8 = 255;

/// The maximum length of an RSA value in bytes. Dividing longer ones takes seconds.
const LONGEST: usize = 1024;

pub(super) fn unlock(key: &SecretKey, passphrase: &str) -> Result<Parts, Error> {
    let id = key.id();
    let unusable = |reason: &str| Error::Unusable { id: id.clone(), reason: reason.to_owned() };
    let cut = Error::Malformed("a secret key is cut off");
    let mut reader = Reader(&key.secret);
    let usage = reader.byte().ok_or(cut)?;
    if usage == PLAIN {
        return sum(reader.0)
            .map(|parts| Parts(parts.to_vec()))
            .ok_or(Error::Malformed("the checksum of a secret key is wrong"));
    }
    if usage != SHA1_SUM && usage != SHORT_SUM {
        return Err(unusable("its protection is not supported; export it with --rfc4880"));
    }
    if passphrase.is_empty() {
        return Err(Error::Locked { id });
    }
    let parts = decrypt(reader, passphrase)
        .ok_or(Error::Malformed("a secret key is cut off"))?
        .map_err(unusable)?;
    let opened = if usage == SHA1_SUM { sha1_sum(&parts) } else { sum(&parts) };
    opened.map(|parts| Parts(parts.to_vec())).ok_or(Error::Passphrase { id: key.id() })
}

/// Decrypts the secret part including its checksum; `None` if it is truncated.
fn decrypt(mut reader: Reader<'_>, passphrase: &str) -> Option<Result<Vec<u8>, &'static str>> {
    let (cipher, length) = match reader.byte()? {
        7 => (&AES_128, AES_128_KEY_LEN),
        8 => (&AES_192, AES_192_KEY_LEN),
        9 => (&AES_256, AES_256_KEY_LEN),
        _ => return Some(Err("it is not encrypted with AES; set its passphrase again with gpg")),
    };
    let Some(secret) = derive(&mut reader, passphrase, length)? else {
        return Some(Err("its passphrase hash is not supported"));
    };
    let iv: &[u8; 16] = reader.take(16)?.try_into().ok()?;
    let mut parts = reader.0.to_vec();
    let key = DecryptingKey::cfb128(UnboundCipherKey::new(cipher, &secret).ok()?).ok()?;
    key.decrypt(&mut parts, DecryptionContext::Iv128(FixedLength::from(iv))).ok()?;
    Some(Ok(parts))
}

/// Verifies the 16-bit sum at the end and returns the bytes before it.
fn sum(bytes: &[u8]) -> Option<&[u8]> {
    let (parts, sum) = bytes.split_last_chunk::<2>()?;
    let computed = parts.iter().fold(0u16, |sum, byte| sum.wrapping_add(u16::from(*byte)));
    (computed == u16::from_be_bytes(*sum)).then_some(parts)
}

fn sha1_sum(bytes: &[u8]) -> Option<&[u8]> {
    let (parts, sum) = bytes.split_last_chunk::<20>()?;
    let computed = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, parts);
    (computed.as_ref() == sum).then_some(parts)
}

/// Derives the cipher key from the passphrase; `Some(None)` for an unknown hash or method.
fn derive(reader: &mut Reader<'_>, passphrase: &str, length: usize) -> Option<Option<Vec<u8>>> {
    let way = reader.byte()?;
    let hash = match reader.byte()? {
        2 => &digest::SHA1_FOR_LEGACY_USE_ONLY,
        8 => &digest::SHA256,
        9 => &digest::SHA384,
        10 => &digest::SHA512,
        11 => &digest::SHA224,
        _ => return Some(None),
    };
    let salt = match way {
        0 => &[][..],
        1 | 3 => reader.take(8)?,
        _ => return Some(None),
    };
    let text = [salt, passphrase.as_bytes()].concat();
    let count = match way {
        3 => {
            let coded = u32::from(reader.byte()?);
            usize::try_from((16 + (coded & 15)) << ((coded >> 4) + 6)).ok()?.max(text.len())
        }
        _ => text.len(),
    };
    let mut key = Vec::new();
    // For a key longer than the hash, each further block is hashed with one more leading zero.
    for zeros in 0.. {
        if key.len() >= length {
            break;
        }
        let mut context = digest::Context::new(hash);
        context.update(&vec![0; zeros]);
        let mut remaining = count;
        while remaining > 0 {
            let part = &text[..remaining.min(text.len())];
            context.update(part);
            remaining -= part.len();
        }
        key.extend(context.finish().as_ref());
    }
    key.truncate(length);
    Some(Some(key))
}

impl Parts {
    /// Encodes an RSA key in PKCS #1.
    pub(super) fn rsa_der(&self, public: &[Vec<u8>]) -> Result<Vec<u8>, Error> {
        let invalid = || Error::Malformed("an RSA key lacks numbers");
        let mut reader = Reader(&self.0);
        let mut next = || reader.number().ok_or_else(invalid);
        let (d, p, q, inverse) = (next()?, next()?, next()?, next()?);
        let [n, e] = public else { return Err(invalid()) };
        if [&**n, &**e, d, p, q, inverse].iter().any(|number| number.len() > LONGEST) {
            return Err(Error::Malformed("an RSA key is longer than 8192 bits"));
        }
        // OpenPGP stores the inverse of p modulo q, PKCS #1 that of its second prime modulo its first. So p and q are
        // swapped.
        let (first, second) = (q, p);
        let part = |prime: &[u8]| remainder(d, &less_one(prime));
        let (d1, d2) = (part(first), part(second));
        Ok(yasna::construct_der(|writer| {
            writer.write_sequence(|writer| {
                writer.next().write_u8(0);
                for number in [n, e, d, first, second, &d1, &d2, inverse] {
                    writer.next().write_bigint_bytes(number, true);
                }
            });
        }))
    }

    /// Returns the seed of an Ed25519 key.
    pub(super) fn seed(&self, algorithm: Algorithm) -> Result<[u8; 32], Error> {
        let invalid = || Error::Malformed("an Ed25519 key must have 32 bytes");
        let mut reader = Reader(&self.0);
        let bytes = match algorithm {
            Algorithm::Ed25519 => reader.take(32),
            _ => reader.number(),
        };
        let bytes = bytes.filter(|bytes| bytes.len() <= 32).ok_or_else(invalid)?;
        let mut seed = [0; 32];
        // An MPI has no leading zeros.
        seed[32 - bytes.len()..].copy_from_slice(bytes);
        Ok(seed)
    }
}

/// Returns an odd number minus one.
fn less_one(number: &[u8]) -> Vec<u8> {
    let mut number = number.to_vec();
    if let Some(last) = number.last_mut() {
        *last &= 0xfe;
    }
    number
}

/// Returns the remainder of `number` divided by `by`, computed bit by bit. It runs only at startup.
fn remainder(number: &[u8], by: &[u8]) -> Vec<u8> {
    // One extra byte for the bit that is shifted out.
    let mut remaining = vec![0u8; by.len() + 1];
    let by = [&[0], by].concat();
    for bit in (0..number.len() * 8).map(|i| number[i / 8] >> (7 - i % 8) & 1) {
        let mut carry = bit;
        for byte in remaining.iter_mut().rev() {
            (*byte, carry) = (*byte << 1 | carry, *byte >> 7);
        }
        if remaining >= by {
            let mut borrow = false;
            for (byte, minus) in remaining.iter_mut().zip(&by).rev() {
                let (once, under) = byte.overflowing_sub(*minus);
                let (twice, again) = once.overflowing_sub(u8::from(borrow));
                (*byte, borrow) = (twice, under || again);
            }
        }
    }
    remaining
}

#[cfg(test)]
mod tests {
    use super::remainder;

    proptest::proptest! {
        #[test]
        fn remainders(number: u128, by in 1u64..) {
            let remaining = remainder(&number.to_be_bytes(), &by.to_be_bytes());
            let remaining = u64::from_be_bytes(remaining[1..].try_into().unwrap());
            proptest::prop_assert_eq!(u128::from(remaining), number % u128::from(by));
        }
    }
}
