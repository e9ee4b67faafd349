//! Tests against GnuPG, which makes the keys and verifies the signatures.

use std::process::{Command, Stdio};

use super::*;

struct Gpg(tempfile::TempDir);

impl Gpg {
    /// Creates a home with one key; `None` if GnuPG is not installed.
    fn with_key(algorithm: &str, usage: &str, passphrase: &str) -> Option<Self> {
        let gpg = Self(tempfile::tempdir().unwrap());
        let installed = Command::new("gpg").arg("--version").stdout(Stdio::null()).status();
        if installed.is_err() {
            eprintln!("skipped: gpg is not installed");
            return None;
        }
        let options = ["--quick-generate-key", "Rack <rack@example.test>", algorithm, usage, "0"];
        gpg.run(&[&["--passphrase", passphrase], &options[..]].concat());
        Some(gpg)
    }

    fn run(&self, args: &[&str]) -> Vec<u8> {
        let usual = ["--batch", "--quiet", "--pinentry-mode", "loopback", "--homedir"];
        let output =
            Command::new("gpg").args(usual).arg(self.0.path()).args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    fn export(&self, passphrase: &str, options: &[&str]) -> Vec<u8> {
        let export = [&["--passphrase", passphrase], options, &["--export-secret-keys"]].concat();
        self.run(&export)
    }

    fn verify(&self, signature: &[u8], text: &[u8]) {
        let path = |name| self.0.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(path("s"), signature).unwrap();
        std::fs::write(path("t"), text).unwrap();
        self.run(&["--verify", &path("s"), &path("t")]);
    }
}

const NOW: u32 = 1_900_000_000;
const TEXT: &[u8] = b"#!ipxe\nkernel k a=b  \r\nboot\n\nno end";

#[test]
fn gpg_verifies_signatures() {
    for (algorithm, usage, passphrase) in
        [("rsa2048", "sign", ""), ("ed25519", "sign", "a word"), ("rsa3072", "sign", "word")]
    {
        let Some(gpg) = Gpg::with_key(algorithm, usage, passphrase) else { return };
        for options in [&[][..], &["--armor"]] {
            let keyring = gpg.export(passphrase, options);
            let signer = Signer::open(&keyring, passphrase).unwrap();
            gpg.verify(&signer.sign(TEXT, NOW).unwrap(), TEXT);
            gpg.verify(signer.sign_armored(TEXT, NOW).unwrap().as_bytes(), TEXT);
        }
        if !passphrase.is_empty() {
            let keyring = gpg.export(passphrase, &[]);
            assert!(matches!(Signer::open(&keyring, ""), Err(Error::Locked { .. })));
            assert!(matches!(Signer::open(&keyring, "x"), Err(Error::Passphrase { .. })));
        }
    }
}

#[test]
fn prefers_signing_subkey() {
    let Some(gpg) = Gpg::with_key("ed25519", "cert", "") else { return };
    let listed = String::from_utf8(gpg.run(&["--list-keys", "--with-colons"])).unwrap();
    let fingerprint = listed.lines().find_map(|line| line.strip_prefix("fpr:")).unwrap();
    let fingerprint = fingerprint.trim_matches(':').to_owned();
    gpg.run(&["--passphrase", "", "--quick-add-key", &fingerprint, "cv25519", "encr", "0"]);
    gpg.run(&["--passphrase", "", "--quick-add-key", &fingerprint, "rsa2048", "sign", "0"]);
    for export in ["--export-secret-keys", "--export-secret-subkeys"] {
        let keyring = gpg.run(&["--passphrase", "", export]);
        let signer = Signer::open(&keyring, "").unwrap();
        assert!(!fingerprint.ends_with(&signer.key_id()));
        gpg.verify(&signer.sign(TEXT, NOW).unwrap(), TEXT);
    }
}

#[test]
fn rejects_invalid_keyrings() {
    assert!(matches!(Signer::open(b"", ""), Err(Error::NoKey)));
    assert!(matches!(Signer::open(b"not a key", ""), Err(Error::Malformed(_))));
}

proptest::proptest! {
    #[test]
    fn parses_arbitrary_keyrings_without_panic(bytes in proptest::collection::vec(0u8..=255, 0..80), tag in 0u8..2) {
        let keyring = packet::packet([packet::SECRET_KEY, packet::SIGNATURE][usize::from(tag)],
            &[&[4, 0, 0, 0, 0], &bytes[..]].concat());
        let _ = Signer::open(&keyring, "x");
        let _ = Signer::open(&bytes, "x");
    }
}

/// Builds a keyring with one key and this secret part.
fn keyring(algorithm: u8, public: &[u8], secret: &[u8]) -> Vec<u8> {
    let body = [&[4, 0, 0, 0, 1, algorithm], public, secret].concat();
    let flags = [4, 0x18, 1, 8, 0, 3, 2, 27, 2, 0, 0];
    [packet::packet(packet::SECRET_KEY, &body), packet::packet(packet::SIGNATURE, &flags)].concat()
}

#[test]
fn keyrings() {
    let mut numbers = Vec::new();
    (0..4).for_each(|n| packet::number(&mut numbers, &[7 + n; 256]));
    let sum = numbers.iter().fold(0u16, |sum, byte| sum.wrapping_add(u16::from(*byte)));
    let plain = [&[0], &numbers[..], &sum.to_be_bytes()].concat();
    let mut public = Vec::new();
    packet::number(&mut public, &[0xc3; 256]);
    packet::number(&mut public, &[1, 0, 1]);
    let rsa = keyring(1, &public, &plain);
    let seed = [&[0], &[1; 32][..], &32u16.to_be_bytes()].concat();
    let ed25519 = keyring(key::ED25519, &[9; 32], &seed);
    let locked =
        keyring(key::ED25519, &[9; 32], &[&[254, 9, 3, 8][..], &[5; 8], &[96], &[6; 68]].concat());
    let armored = armor::encode("PGP PRIVATE KEY BLOCK", &ed25519);
    let seeds: [&[u8]; 4] = [&rsa, &ed25519, &locked, armored.as_bytes()];
    fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "keyring", &seeds, |input| {
        for passphrase in ["", "x"] {
            if let Ok(signer) = Signer::open(input, passphrase) {
                let _ = signer.sign(b"text", 7);
            }
        }
    });
}
