//! HTTP for clients: signatures, health, and TLS beside plain HTTP.

use std::process::Command;

use crate::world::{SERVER, World, have, inside, run, try_run};

#[test]
fn signs_answers_of_all_endpoints() {
    if !inside("web::signs_answers_of_all_endpoints") {
        return;
    }
    let mut world = World::new();
    let home = world.path("gnupg");
    std::fs::create_dir(&home).unwrap();
    let gpg = format!("gpg --batch --quiet --pinentry-mode loopback --homedir {}", home.display());
    if Command::new("gpg").arg("--version").output().is_err() {
        eprintln!("skipped: there is no gpg");
        return;
    }
    run(&format!(
        "chmod 700 {} && {gpg} --passphrase '' --quick-generate-key a@b rsa2048 sign 0",
        home.display()
    ));
    run(&format!("{gpg} --export-secret-keys > {}", world.path("ring").display()));
    world.serve(&format!(
        "--no-dhcp --no-tftp --no-dns --key-ring-path {}",
        world.path("ring").display()
    ));
    let (body, signature) = (world.path("body"), world.path("signature"));
    let (body, signature) = (body.display(), signature.display());
    for endpoint in ["boot.ipxe", "boot.ipxe.0", "ipxe", "grub", "generic", "metadata", "ignition"]
    {
        for suffix in ["sig", "asc"] {
            // Errors are signed too: the Ignition template does not exist.
            let url = format!("http://{SERVER}:8080/{endpoint}");
            run(&format!("curl -sS -o {body} '{url}?mac=52:54:00:00:00:01'"));
            run(&format!("curl -sS -o {signature} '{url}.{suffix}?mac=52:54:00:00:00:01'"));
            run(&format!("{gpg} --verify {signature} {body}"));
        }
    }
    let code = |path: &str| {
        run(&format!("curl -sS -o /dev/null -w '%{{http_code}}' http://{SERVER}:8080/{path}"))
    };
    assert_eq!(code("ignition.sig"), "404");
    assert_eq!(code("assets/k.sig"), "404");
    assert_eq!(code(".sig"), "404");
    assert_eq!(code("healthz"), "200");
    assert_eq!(code("ipxe"), "200");
    let (reached, _) = try_run(&format!("curl -sS https://{SERVER}:8080/"));
    assert!(!reached);
    world.stop();
}

#[test]
#[ignore = "takes a while: cargo xtask test --full"]
fn browser_shows_machines() {
    if !have("chromium") || !inside("web::browser_shows_machines") {
        return;
    }
    let mut world = World::new();
    world.serve("--no-dhcp --no-tftp --no-dns");
    let mac = "52:54:00:00:00:01";
    run(&format!("curl -fsS 'http://{SERVER}:8080/ipxe?mac={mac}&hostname=%3Cb%3Eone%3C/b%3E'"));
    // The profile names a template that does not exist.
    run(&format!("curl -sS 'http://{SERVER}:8080/ignition?mac={mac}'"));
    let browser = format!(
        "HOME={} timeout 60 chromium --headless --no-sandbox --disable-gpu --dump-dom",
        world.dir.path().display()
    );
    let page = run(&format!("{browser} http://{SERVER}:8080/machines 2>/dev/null"));
    for wanted in [mac, "&lt;b&gt;one&lt;/b&gt;", "Ignition config failed", "no ignition template"]
    {
        assert!(page.contains(wanted), "{wanted}: {page}");
    }
    let page = run(&format!("{browser} http://{SERVER}:8080/machines/{mac} 2>/dev/null"));
    assert!(page.contains("iPXE") && page.contains("class=\"bar\""), "{page}");
    world.stop();
}
