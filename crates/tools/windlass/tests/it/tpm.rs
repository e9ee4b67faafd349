//! Tests that a machine proves its identity with its TPM: `metal serve`, Ignition's fetch and a simulated TPM, as
//! processes.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant, SystemTime},
};

use pki::{AltName, Authority, KeyAlgorithm, LeafSpec, Subject, Usage, Validity};
use testkit::free_port;

use crate::processes::{Process, WINDLASS};

const MAC: &str = "52-54-00-00-00-01";

fn is_there(program: &str) -> bool {
    let installed = Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok();
    if !installed {
        eprintln!("skipped: no {program} (Debian: apt-get install swtpm tpm2-tools)");
    }
    installed
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Starts a new TPM of a machine. Each has its own seed.
fn swtpm(folder: &Path) -> Process {
    fs::create_dir_all(folder).unwrap();
    let path = |name: &str| format!("type=unixio,path={}", folder.join(name).display());
    let process = Command::new("swtpm")
        .args(["socket", "--tpm2", "--flags", "not-need-init,startup-clear"])
        .args(["--tpmstate", &format!("dir={}", folder.display())])
        .args(["--server", &path("tpm"), "--ctrl", &path("tpm.ctrl")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let process = Process(process);
    until("swtpm listens", || folder.join("tpm.ctrl").exists());
    process
}

struct World {
    folder: tempfile::TempDir,
    port: u16,
}

impl World {
    fn write(&self, name: &str, text: &str) {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Returns a command of the machine with this TPM.
    fn on(&self, tpm: &str, program: &str) -> Command {
        let socket = self.folder.path().join(tpm).join("tpm");
        let mut command = Command::new(program);
        command.env("TPM2TOOLS_TCTI", format!("swtpm:path={}", socket.display()));
        command
    }

    fn certificates(&self) {
        let validity = Validity::starting(SystemTime::now(), Duration::from_secs(3600));
        let authority = Authority::create("boot", KeyAlgorithm::EcdsaP256, validity).unwrap();
        let spec = LeafSpec {
            subject: Subject::new("boot"),
            alt_names: vec![AltName::Ip("127.0.0.1".parse().unwrap())],
            usage: Usage::Server,
        };
        let (cert, key) = authority.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity).unwrap();
        pki::write_cert(&self.folder.path().join("server.crt"), &cert).unwrap();
        pki::write_key(&self.folder.path().join("server.key"), &key).unwrap();
        // The machine trusts the server by its image's configuration, before it fetches anything.
        let pem = authority.cert().to_pem().replace('\n', "%0A");
        let config = serde_json::json!({ "ignition": {"version": "3.4.0", "security": {"tls":
            {"certificateAuthorities": [{"source": format!("data:,{pem}")}]}}} });
        self.write("image/base.d/ca.ign", &config.to_string());
    }

    fn serve(&self) -> Process {
        let at = self.folder.path();
        let process = Command::new(WINDLASS)
            .args(["metal", "serve", "--no-dhcp", "--no-tftp", "--no-dns", "--no-ra", "--web-ssl"])
            .arg(format!("--address=127.0.0.1:{}", self.port))
            .args(["--assets-path=", "--machines-file="])
            .arg(format!("--data-path={}", at.display()))
            .arg(format!("--web-cert-file={}", at.join("server.crt").display()))
            .arg(format!("--web-key-file={}", at.join("server.key").display()))
            .stderr(fs::File::create(at.join("serve.log")).unwrap())
            .spawn()
            .unwrap();
        let process = Process(process);
        until("the server listens", || {
            std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        });
        process
    }

    /// Runs Ignition's fetch stage on the machine with this TPM. Returns its config, or the error output.
    fn fetch(&self, tpm: &str) -> Result<String, String> {
        let at = self.folder.path();
        let cache = at.join(format!("{tpm}.json"));
        let _ = fs::remove_file(&cache);
        let url = format!("https://127.0.0.1:{}/ignition?mac={MAC}", self.port);
        self.write("cmdline", &format!("ignition.config.url={url}\n"));
        let ran = self
            .on(tpm, WINDLASS)
            .args(["ignition", "--stage", "fetch", "--config-cache"])
            .arg(&cache)
            .env("IGNITION_KERNEL_CMDLINE_PATH", at.join("cmdline"))
            .env("IGNITION_SYSTEM_CONFIG_DIR", at.join("image"))
            .output()
            .unwrap();
        if ran.status.success() {
            Ok(fs::read_to_string(cache).unwrap())
        } else {
            Err(String::from_utf8_lossy(&ran.stderr).into_owned())
        }
    }
}

#[test]
fn serves_secrets_only_to_machine_with_tpm() {
    if !is_there("swtpm") || !is_there("tpm2") {
        return;
    }
    let world = World { folder: tempfile::tempdir().unwrap(), port: free_port() };
    world.certificates();
    world.write(
        "groups/g.json",
        r#"{"id":"g","profile":"p","selector":{"mac":"52-54-00-00-00-01"}}"#,
    );
    world.write("profiles/p.json", r#"{"id":"p","ignition_id":"i.yaml"}"#);
    let template = "variant: fcos\nversion: 1.5.0\nstorage:\n  files:\n    - path: /token\n      \
                    contents: {inline: '{{secret `token`}}'}\n";
    world.write("ignition/i.yaml", template);
    world.write("secrets/token", "the-secret");
    let _tpms = ["one", "other"].map(|name| swtpm(&world.folder.path().join(name)));
    let printed = world.on("one", WINDLASS).args(["metal", "tpm-key"]).output().unwrap();
    let key = String::from_utf8_lossy(&printed.stdout).into_owned();
    assert!(key.starts_with("-----BEGIN PUBLIC KEY-----"), "{key} {printed:?}");
    // A kernel's resource manager flushes between programs; the test uses the TPM without one.
    world.on("one", "tpm2").args(["flushcontext", "-t"]).status().unwrap();
    world.write(&format!("tpm/{MAC}.pem"), &key);
    let _server = world.serve();
    let error = world.fetch("other").unwrap_err();
    assert!(error.contains("the signature is not by the machine's key"), "{error}");
    let error = world.fetch("absent").unwrap_err();
    assert!(error.contains("wants the signature of the machine's TPM"), "{error}");
    let config = world.fetch("one").unwrap();
    assert!(config.contains("data:,the-secret"), "{config}");
    world.on("one", "tpm2").args(["flushcontext", "-t"]).status().unwrap();
    let error = world.fetch("one").unwrap_err();
    assert!(error.contains("was served already"), "{error}");
}
