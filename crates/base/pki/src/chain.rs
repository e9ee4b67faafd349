//! Verifies the chains of client certificates by the rules of Go's crypto/x509, which every Kubernetes server follows.
//!
//! rustls' webpki accepts fewer certificates: none of version 1, which `openssl x509 -req` writes without an extension
//! file. [`Search::verify`] is the entry. `vectors/client-certificates.tsv` contains certificates with Go's verdicts.

mod certificate;
mod constraints;
#[cfg(test)]
mod tests;

use std::time::SystemTime;

pub(crate) use certificate::Certificate;

use crate::{cert::format_time, fault::Fault, signature};

/// The limit of signature checks in one verification, as in Go.
const MAX_SIGNATURES: u32 = 100;

const SHA1: [&[u8]; 2] = [
    &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x05],
    &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x01],
];

/// The search for a chain from one certificate to a root.
pub(crate) struct Search<'a> {
    roots: &'a [Certificate],
    intermediates: &'a [Certificate],
    now: SystemTime,
    signatures_left: u32,
    /// The first invalid certificate, which explains more than that no chain was found.
    invalid: Option<Fault>,
    /// The first authority that has the issuer's name but did not sign.
    unsigned: Option<Fault>,
}

type Chain<'a> = Vec<&'a Certificate>;

impl<'a> Search<'a> {
    pub(crate) fn new(
        roots: &'a [Certificate],
        intermediates: &'a [Certificate],
        now: SystemTime,
    ) -> Self {
        let signatures_left = MAX_SIGNATURES;
        Self { roots, intermediates, now, signatures_left, invalid: None, unsigned: None }
    }

    /// Returns the moment until which the found chain is valid.
    ///
    /// # Errors
    ///
    /// Returns Go's message for the first error.
    pub(crate) fn verify(mut self, leaf: &'a Certificate) -> Result<SystemTime, Fault> {
        leaf.check_itself(self.now)?;
        let mut chain = vec![leaf];
        if self.roots.iter().any(|root| root.cert == leaf.cert) {
            check_whole(&chain)?;
        } else if !self.complete(&mut chain) {
            return Err(self.failure());
        }
        Ok(chain.iter().map(|link| link.not_after).min().unwrap_or(self.now))
    }

    fn failure(self) -> Fault {
        match (self.invalid, self.unsigned) {
            (Some(invalid), _) => invalid,
            (None, Some(hint)) => Fault::NotSigned(Box::new(hint)),
            (None, None) => Fault::UnknownAuthority,
        }
    }

    /// Extends the chain to a root, depth first. Returns `false` if there is no chain to a root. The search ends
    /// because each step checks a signature, and their number is bounded.
    fn complete(&mut self, chain: &mut Chain<'a>) -> bool {
        let Some(child) = chain.last().copied() else { return false };
        let roots = self.roots.iter().map(|root| (root, true));
        let candidates = roots.chain(self.intermediates.iter().map(|between| (between, false)));
        for (candidate, is_root) in candidates {
            if candidate.subject != child.issuer
                || chain.iter().any(|link| link.is_same_holder(candidate))
            {
                continue;
            }
            if let Err(why) = self.check_signature(child, candidate) {
                self.unsigned.get_or_insert(why);
                continue;
            }
            if let Err(why) = candidate.check_authority(is_root, chain.len() - 1, self.now) {
                self.invalid.get_or_insert(why);
                continue;
            }
            chain.push(candidate);
            if !is_root && self.complete(chain) {
                return true;
            }
            if is_root {
                match check_whole(chain) {
                    Ok(()) => return true,
                    Err(why) => drop(self.invalid.get_or_insert(why)),
                }
            }
            chain.pop();
        }
        false
    }

    fn check_signature(&mut self, child: &Certificate, parent: &Certificate) -> Result<(), Fault> {
        let left = self.signatures_left.checked_sub(1);
        self.signatures_left = left.ok_or(Fault::SignatureLimit)?;
        let may_be_ca = parent.basic_constraints.map_or(parent.version < 3, |found| found.is_ca);
        if !may_be_ca || !parent.may_sign {
            return Err(Fault::ParentUsage);
        }
        let signature = &child.signature;
        if SHA1.contains(&signature.algorithm.as_slice()) {
            return Err(Fault::Sha1);
        }
        signature::check_key(&parent.public_key)?;
        let (key, message) = (&parent.public_key, &signature.message);
        match signature::verify(&signature.algorithm, key, message, &signature.value) {
            Some(true) => Ok(()),
            Some(false) => Err(Fault::Verification),
            None => Err(Fault::Unimplemented),
        }
    }
}

/// Checks the constraints between the certificates of a complete chain: usages and names.
fn check_whole(chain: &[&Certificate]) -> Result<(), Fault> {
    let mut comparisons = 0;
    for (at, authority) in chain.iter().enumerate().filter(|(_, link)| !link.constraints.is_empty())
    {
        for below in &chain[..at] {
            authority.constraints.check(&below.names, &mut comparisons)?;
        }
    }
    if chain.iter().all(|link| link.client_auth) {
        return Ok(());
    }
    Err(Fault::KeyUsage)
}

impl Certificate {
    /// Checks the certificate alone.
    fn check_itself(&self, now: SystemTime) -> Result<(), Fault> {
        if self.unhandled {
            return Err(Fault::UnhandledExtension);
        }
        let at = format_time(now);
        if now < self.not_before {
            return Err(Fault::NotYetValid { now: at, from: format_time(self.not_before) });
        }
        if now > self.not_after {
            return Err(Fault::Expired { now: at, until: format_time(self.not_after) });
        }
        Ok(())
    }

    /// Checks an authority above `intermediates` others. A root need not be marked as an authority.
    fn check_authority(
        &self,
        is_root: bool,
        intermediates: usize,
        now: SystemTime,
    ) -> Result<(), Fault> {
        self.check_itself(now)?;
        if !is_root && !self.basic_constraints.is_some_and(|found| found.is_ca) {
            return Err(Fault::NotAuthority);
        }
        let most = self.basic_constraints.and_then(|found| found.max_path_len);
        if most.is_some_and(|most| intermediates > most as usize) {
            return Err(Fault::PathLength);
        }
        Ok(())
    }

    fn is_same_holder(&self, other: &Self) -> bool {
        self.subject == other.subject && self.public_key == other.public_key
    }
}
