//! The path of a machine from its first boot to its disk: nonces, secrets, reports.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use aws_lc_rs::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::Method;

use super::*;
use crate::machines::Stage;

const MAC: &str = "mac=52:54:00:00:00:01";
const ARGS: &str =
    "ignition.config.url=https://m/ignition?mac=${mac:hexhyp}&nonce={{.request.nonce}}";

struct World {
    dir: tempfile::TempDir,
    matchbox: Matchbox,
}

fn put(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn world(group: &str, insecure_secrets: bool) -> World {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "groups/g.json", group);
    let profile = format!(
        r#"{{"id":"p","generic_id":"t","install_once":true,"boot":{{"kernel":"/k","args":["{ARGS}"]}}}}"#
    );
    put(dir.path(), "profiles/p.json", &profile);
    put(dir.path(), "generic/t", "{{secret \"token\"}} {{secret \"token\"}}");
    put(dir.path(), "secrets/token", "for all\n");
    let page_readers = vec!["198.51.100.0/24".parse().unwrap()];
    let settings = Settings { insecure_secrets, page_readers, ..Settings::default() };
    let matchbox = Matchbox::new(Arc::new(Store::new(dir.path())), settings);
    World { dir, matchbox }
}

const GROUP: &str = r#"{"id":"g","profile":"p"}"#;

impl World {
    fn get(&self, path: &str, query: &str, tls: bool) -> Result<String, String> {
        let request =
            HttpRequest { path: path.into(), query: query.into(), tls, ..HttpRequest::default() };
        match self.matchbox.serve(&request).unwrap() {
            Ok(content) => Ok(String::from_utf8(content.body).unwrap()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Boots the machine once and returns the nonce of its URL.
    fn boot(&self) -> String {
        let script = self.get("/ipxe", MAC, false).unwrap();
        let nonce = script.split("nonce=").nth(1).unwrap().split('\n').next().unwrap();
        assert_eq!(nonce.len(), 32, "{script}");
        nonce.to_owned()
    }

    fn report(&self, query: &str, text: &str) -> u16 {
        let request =
            HttpRequest { path: "/report".into(), query: query.into(), ..HttpRequest::default() };
        let inventory = &self.matchbox.settings.inventory;
        let work = report::take(inventory, &request, &Method::POST, serve::full(text.to_owned()));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(work).status().as_u16()
    }
}

#[test]
fn serves_secret_once_over_tls_to_its_machine() {
    let world = world(GROUP, false);
    let nonce = world.boot();
    let with = |nonce: &str| format!("{MAC}&nonce={nonce}");
    for (query, tls, why) in [
        (with(&nonce), false, "without TLS"),
        (MAC.to_owned(), true, "has no nonce"),
        (with(""), true, "has no nonce"),
        (with("0"), true, "is not that of the machine"),
        (format!("mac=52:54:00:00:00:02&nonce={nonce}"), true, "is not that of the machine"),
        (format!("nonce={nonce}"), true, "neither mac nor uuid"),
    ] {
        let error = world.get("/generic", &query, tls).unwrap_err();
        assert!(error.contains(why) && error.contains("t:1:"), "{error}");
    }
    assert_eq!(world.get("/generic", &with(&nonce), true).unwrap(), "for all for all");
    let again = world.get("/generic", &with(&nonce), true).unwrap_err();
    assert!(again.contains("was served already"), "{again}");
    // A new boot has a new nonce, which invalidates the old one.
    let fresh = world.boot();
    assert!(world.get("/generic", &with(&nonce), true).is_err());
    put(world.dir.path(), "secrets/52-54-00-00-00-01/token", "its own");
    // A secret for a template that fails to render has not been served.
    put(world.dir.path(), "generic/t", "{{secret \"token\"}}{{.absent}}");
    assert!(world.get("/generic", &with(&fresh), true).is_err());
    put(world.dir.path(), "generic/t", "{{secret \"token\"}}");
    assert_eq!(world.get("/generic", &with(&fresh), true).unwrap(), "its own");
    let metrics = world.get("/metrics", "", false).unwrap();
    assert!(metrics.contains("netboot_secrets_total{outcome=\"served\"} 4"), "{metrics}");
}

#[test]
fn rejects_empty_nonce() {
    let world = world(GROUP, false);
    world.boot();
    // The script as if the kernel had no random numbers.
    world.matchbox.settings.inventory.set_nonce("52:54:00:00:00:01", "", true);
    let error = world.get("/generic", &format!("{MAC}&nonce="), true).unwrap_err();
    assert!(error.contains("has no nonce"), "{error}");
    assert_eq!(world.report(&format!("{MAC}&nonce=&stage=installed"), ""), 403);
}

#[test]
fn uuid_cannot_leave_secrets_directory() {
    let world = world(GROUP, true);
    put(world.dir.path(), "secrets/uuid-x/token", "of a folder that exists");
    put(world.dir.path(), "generic/token", "no secret");
    put(world.dir.path(), "generic/t", "{{secret \"token\"}}");
    for (uuid, wanted) in [("x", "of a folder that exists"), ("x/../../generic", "for all")] {
        let got = world.get("/generic", &format!("uuid={uuid}"), false);
        assert_eq!(got.as_deref(), Ok(wanted), "{uuid}");
    }
}

#[test]
fn makes_bootstrap_token_for_each_boot() {
    let mut world = world(GROUP, false);
    put(world.dir.path(), "generic/t", "{{secret \"bootstrap-token\"}}");
    let nonce = world.boot();
    let error = world.get("/generic", &format!("{MAC}&nonce={nonce}"), true).unwrap_err();
    assert!(error.contains("does not exist"), "without a token maker: {error}");
    let works = Arc::new(AtomicBool::new(false));
    let up = works.clone();
    let maker: TokenMaker = Arc::new(move |machine| {
        if up.load(Ordering::Relaxed) {
            Ok(format!("of {machine}"))
        } else {
            Err("the cluster is down".into())
        }
    });
    world.matchbox.settings.token_maker = Some(maker);
    let query = format!("{MAC}&nonce={nonce}");
    assert!(world.get("/generic", &query, false).is_err(), "without TLS");
    let error = world.get("/generic", &query, true).unwrap_err();
    assert!(error.contains("the cluster is down"), "{error}");
    works.store(true, Ordering::Relaxed);
    // A token that could not be made was not served.
    assert_eq!(world.get("/generic", &query, true).unwrap(), "of 52:54:00:00:00:01");
    assert!(world.get("/generic", &query, true).unwrap_err().contains("was served already"));
}

#[test]
fn rejects_secrets_in_kernel_arguments() {
    let world = world(GROUP, true);
    for (name, why) in [
        ("../groups/g.json", "is not a secret name"),
        (".hidden", "is not a secret name"),
        ("absent", "does not exist"),
    ] {
        put(world.dir.path(), "generic/t", &format!("{{{{secret \"{name}\"}}}}"));
        let error = world.get("/generic", MAC, false).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
    put(
        world.dir.path(),
        "profiles/p.json",
        r#"{"id":"p","boot":{"args":["{{secret \"token\"}}"]}}"#,
    );
    let error = world.get("/ipxe", MAC, false).unwrap_err();
    assert!(error.contains("only ignition, cloud and generic"), "{error}");
    let report = check::check(&world.matchbox).to_string();
    let wanted = "profile \"p\", boot setting args[0]: template: p:1:2: ";
    assert!(report.contains("only ignition, cloud and generic"), "{report}");
    assert!(report.contains(wanted) && error.contains(wanted), "{report} {error}");
}

#[test]
fn serves_insecure_secrets_to_every_client() {
    let world = world(GROUP, true);
    for _ in 0..2 {
        assert_eq!(world.get("/generic", "", false).unwrap(), "for all for all");
    }
}

struct Tpm {
    key: EcdsaKeyPair,
    pem: String,
}

fn tpm() -> Tpm {
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new())
        .unwrap();
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8.as_ref()).unwrap();
    let spki = aws_lc_rs::encoding::AsDer::<aws_lc_rs::encoding::PublicKeyX509Der<'_>>::as_der(
        key.public_key(),
    )
    .unwrap();
    let pem = pki::encode("PUBLIC KEY", spki.as_ref());
    Tpm { key, pem }
}

impl Tpm {
    /// Returns the `Authorization` value with this TPM's signature of a challenge.
    fn sign(&self, challenge: &str) -> String {
        let signature = self.key.sign(&SystemRandom::new(), challenge.as_bytes()).unwrap();
        format!("TPM {challenge}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }
}

impl World {
    fn ask(&self, query: &str, authorization: Option<String>) -> Result<String, handler::Failure> {
        let (path, query) = ("/generic".into(), query.into());
        let request =
            HttpRequest { path, query, tls: true, authorization, ..HttpRequest::default() };
        let body = self.matchbox.serve(&request).unwrap()?.body;
        Ok(String::from_utf8(body).unwrap())
    }

    fn challenge(&self, query: &str) -> String {
        match self.ask(query, None) {
            Err(handler::Failure::Challenge { challenge, .. }) => challenge,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn accepts_tpm_signature_of_challenge() {
    let (ours, other) = (tpm(), tpm());
    let world = world(GROUP, false);
    put(world.dir.path(), "tpm/52-54-00-00-00-01.pem", &ours.pem);
    let challenge = world.challenge(MAC);
    // A machine with a known key needs more than the nonce.
    let nonce = world.boot();
    let with_nonce = format!("{MAC}&nonce={nonce}");
    assert_ne!(world.challenge(&with_nonce), "");
    let plain = world.get("/generic", MAC, false).unwrap_err();
    assert!(plain.contains("without TLS"), "{plain}");
    for wrong in [other.sign(&challenge), format!("TPM {challenge}.x"), format!("TPM {challenge}.")]
    {
        let error = world.ask(MAC, Some(wrong)).unwrap_err().to_string();
        assert!(error.contains("signature is not"), "{error}");
    }
    // A forged challenge, or one for another machine, leads to a new challenge.
    put(world.dir.path(), "tpm/52-54-00-00-00-02.pem", &ours.pem);
    for stranger in ["1-x".to_owned(), world.challenge("mac=52:54:00:00:00:02")] {
        let answer = world.ask(MAC, Some(ours.sign(&stranger)));
        assert!(matches!(answer, Err(handler::Failure::Challenge { .. })), "{answer:?}");
    }
    // A failed answer consumes no secret.
    put(world.dir.path(), "generic/t", "{{secret \"token\"}}{{.absent}}");
    assert!(world.ask(MAC, Some(ours.sign(&challenge))).is_err());
    put(world.dir.path(), "generic/t", "{{secret \"token\"}}");
    assert_eq!(world.ask(MAC, Some(ours.sign(&challenge))).unwrap(), "for all");
    let again = world.ask(MAC, Some(ours.sign(&challenge))).unwrap_err().to_string();
    assert!(again.contains("was served already"), "{again}");
    let metrics = world.get("/metrics", "", false).unwrap();
    assert!(metrics.contains("netboot_secrets_total{outcome=\"served\"} 2"), "{metrics}");
    let machine = world.matchbox.settings.inventory.machine("52:54:00:00:00:01").unwrap();
    assert!(machine.timeline.iter().any(|entry| entry.detail == "waiting for a TPM signature"));
}

#[test]
fn demands_signature_with_group_key() {
    let (groups, own) = (tpm(), tpm());
    let group = serde_json::json!({ "id": "g", "profile": "p", "tpm_key": groups.pem });
    let world = world(&group.to_string(), false);
    put(world.dir.path(), "tpm/52-54-00-00-00-01.pem", &own.pem);
    let challenge = world.challenge(MAC);
    assert!(world.ask(MAC, Some(own.sign(&challenge))).is_err());
    assert_eq!(world.ask(MAC, Some(groups.sign(&challenge))).unwrap(), "for all for all");
    // A machine whose name is not a valid file name must not fall back to the nonce.
    let uuid = "uuid=x/../52-54-00-00-00-01";
    world.get("/ipxe", uuid, false).unwrap();
    assert!(matches!(world.ask(uuid, None), Err(handler::Failure::Challenge { .. })));
}

#[test]
fn demands_tpm_signature_for_every_selecting_label() {
    let (one, two) = (tpm(), tpm());
    let world = world(r#"{"id":"g","profile":"p","selector":{"uuid":"u-1"}}"#, false);
    let ask = |query: &str| {
        world.get("/ipxe", query, false).unwrap();
        let script = world.get("/ipxe", query, false).unwrap();
        let nonce =
            script.split("nonce=").nth(1).and_then(|rest| rest.split(['&', '\n', ' ']).next());
        world.get("/generic", &format!("{query}&nonce={}", nonce.unwrap_or_default()), true)
    };
    // Without any TPM key, the nonce of the boot suffices.
    assert_eq!(ask("uuid=u-1").unwrap(), "for all for all");
    put(world.dir.path(), "tpm/52-54-00-00-00-01.pem", &one.pem);
    put(world.dir.path(), "tpm/52-54-00-00-00-02.pem", &two.pem);
    // The key belongs to the MAC address, which an attacker omits or replaces.
    for query in ["uuid=u-1", "uuid=u-1&mac=52:54:00:00:00:09", "uuid=u-1&mac=52:54:00:00:00:02"] {
        let error = ask(query).unwrap_err();
        assert!(
            error.contains("selected by uuid, which any machine may claim"),
            "{query}: {error}"
        );
    }
    let report = check::check(&world.matchbox).to_string();
    assert!(!report.contains("selected by"), "{report}");
    let group = r#"{"id":"g","profile":"p","selector":{"serial":"s","os":"x"}}"#;
    put(world.dir.path(), "groups/g.json", group);
    let error = ask("serial=s&os=x&mac=52:54:00:00:00:09").unwrap_err();
    assert!(error.contains("selected by serial"), "{error}");
    let report = check::check(&world.matchbox).to_string();
    assert!(report.contains("selected by serial"), "{report}");
}

#[test]
fn demands_tpm_signature_for_claimed_uuid() {
    let (one, two) = (tpm(), tpm());
    let world = world(r#"{"id":"g","profile":"p","selector":{"uuid":"u-1"}}"#, false);
    put(world.dir.path(), "tpm/52-54-00-00-00-01.pem", &one.pem);
    put(world.dir.path(), "tpm/52-54-00-00-00-02.pem", &two.pem);
    put(world.dir.path(), "tpm/uuid-u-1.pem", &one.pem);
    for query in ["uuid=u-1", "uuid=u-1&mac=52:54:00:00:00:09", "uuid=u-1&mac=52:54:00:00:00:01"] {
        world.get("/ipxe", query, false).unwrap();
        let challenge = world.challenge(query);
        assert!(world.ask(query, Some(two.sign(&challenge))).is_err());
        assert_eq!(
            world.ask(query, Some(one.sign(&challenge))).unwrap(),
            "for all for all",
            "{query}"
        );
    }
    let other = "uuid=u-1&mac=52:54:00:00:00:02";
    let error = world.ask(other, None).unwrap_err().to_string();
    assert!(error.contains("belong to different machines"), "{error}");
}

#[test]
fn check_reports_invalid_tpm_keys() {
    let group = serde_json::json!({ "id": "g", "profile": "p", "tpm_key": "x" });
    let world = world(&group.to_string(), false);
    put(world.dir.path(), "tpm/52-54-00-00-00-01.pem", "-----BEGIN");
    put(world.dir.path(), "tpm/52:54:00:00:00:02.pem", &tpm().pem);
    put(world.dir.path(), "tpm/52-54-00-00-00-03.pem", &tpm().pem);
    let report = check::check(&world.matchbox);
    assert_eq!(report.problems.len(), 3, "{report}");
    let error = world.ask(MAC, Some(tpm().sign(&world.challenge(MAC)))).unwrap_err().to_string();
    assert!(error.contains("not a public key in PEM"), "{error}");
}

#[test]
fn serves_secret_to_one_of_concurrent_requests() {
    let world = world(GROUP, false);
    let query = format!("{MAC}&nonce={}", world.boot());
    let served = std::thread::scope(|scope| {
        let ask = || world.get("/generic", &query, true).is_ok();
        let asking: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        asking.into_iter().filter_map(|thread| thread.join().ok()).filter(|ok| *ok).count()
    });
    assert_eq!(served, 1);
}

#[test]
fn boots_installed_machine_from_disk() {
    let world = world(GROUP, false);
    let nonce = world.boot();
    let say = |stage: &str, rest: &str| world.report(&format!("{MAC}&stage={stage}{rest}"), "");
    assert_eq!(say("files", ""), 403);
    assert_eq!(say("installed", "&nonce=0"), 403);
    assert_eq!(say("ready", &format!("&nonce={nonce}")), 400);
    assert_eq!(say("files", &format!("&nonce={nonce}&status=maybe")), 400);
    assert_eq!(world.report("mac=52:54:00:00:00:09&stage=files", ""), 404);
    let failed = format!("{MAC}&stage=disks&status=failed&nonce={nonce}");
    assert_eq!(world.report(&failed, "/dev/vda: no such device"), 200);
    let inventory = &world.matchbox.settings.inventory;
    let machine = || inventory.machine("52:54:00:00:00:01").unwrap();
    assert_eq!(machine().failure.unwrap().text, "/dev/vda: no such device");
    assert_eq!(world.report(&failed, &"x".repeat(20_000)), 413);
    // The machine has not reported an installation, so it is installed again.
    let nonce = world.boot();
    assert_eq!(say("installed", &format!("&nonce={nonce}&hostname=node1")), 200);
    assert_eq!(machine().hostname.as_deref(), Some("node1"));
    let script = world.get("/ipxe", &format!("{MAC}&x=1"), false).unwrap();
    let drives =
        ["0x80", "0x81"].map(|drive| format!("sanboot --no-describe --drive {drive} ||\n"));
    assert!(script.contains(&drives.concat()) && !script.contains("kernel"), "{script}");
    assert!(script.contains("${platform} efi && exit 1 ||"), "{script}");
    assert!(script.contains(&format!("chain ipxe?{MAC}&x=1&windlass_disk=none\n")), "{script}");
    assert_eq!(machine().last().unwrap().stage, Stage::LocalDisk);
    let script = world.get("/grub", MAC, false).unwrap();
    assert!(script.contains("then chainloader /EFI/BOOT/BOOTX64.EFI; boot; fi\nexit"), "{script}");
    assert!(script.contains("for disk in hd0 hd1 hd2 hd3; do\nset root=$disk\n"), "{script}");
    // Another machine of the group is not installed, and this machine's disk was wiped.
    assert!(world.get("/ipxe", "mac=52:54:00:00:00:02", false).unwrap().contains("kernel /k"));
    let wiped = world.get("/ipxe", &format!("{MAC}&windlass_disk=none"), false).unwrap();
    assert!(wiped.contains("kernel /k"), "{wiped}");
}

#[test]
fn page_shows_failure_of_machine() {
    let world = world(GROUP, false);
    world.boot();
    put(world.dir.path(), "generic/t", "\n{{.absent}}");
    world.get("/generic", MAC, false).unwrap_err();
    let read = |path: &str, peer: &str| {
        let peer = Some(peer.parse().unwrap());
        let request = HttpRequest { path: path.into(), peer, ..HttpRequest::default() };
        let answer = world.matchbox.serve(&request).unwrap();
        answer
            .map(|content| String::from_utf8(content.body).unwrap())
            .map_err(|error| error.to_string())
    };
    for path in ["/machines", "/machines/", "/machines.json", "/machines/52:54:00:00:00:01"] {
        for peer in ["192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1"] {
            let error = read(path, peer).unwrap_err();
            assert!(error.contains("shown to this machine only"), "{path} {peer}: {error}");
        }
        assert!(read(path, "198.51.100.7").is_ok(), "{path}");
    }
    assert!(world.get("/machines", "", false).is_err(), "the client is unknown");
    let page = read("/machines", "127.0.0.1").unwrap();
    assert!(page.contains("generic template &quot;t&quot;: template: t:2:2"), "{page}");
    let one = read("/machines/52:54:00:00:00:01", "::1").unwrap();
    assert!(one.contains("<dt>group<dd>g") && one.contains("Ignition config failed"), "{one}");
    let json = read("/machines.json", "::ffff:127.0.0.1").unwrap();
    assert!(json.contains("\"profile\":\"p\"") && !json.contains("private"), "{json}");
}
