//! Virtual machines with empty disks (QEMU without acceleration), and the `windlass metal serve` that boots them.

use std::{
    fs::{self, File},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use serde_json::Value;

use crate::{
    machines::Machines,
    process::{Output, run, until},
    programs::binary,
};

/// The server's address on the machines' network.
const ADDRESS: &str = "192.0.2.254";
/// The iPXE build that uses the firmware's network driver. Debian's ipxe.efi of 2019 does not return to the firmware.
const LOADER: &str = "/usr/lib/ipxe/snponly.efi";
const FIRMWARE: &str = "/usr/share/OVMF/OVMF_CODE_4M.fd";
const SECOND: &str = "second.img";
const TPM: &str = "tpm";
const VARIABLES: &str = "/usr/share/OVMF/OVMF_VARS_4M.fd";

/// The boot method of a machine's firmware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootMethod {
    /// BIOS, with iPXE in the network card.
    Bios,
    /// UEFI, which fetches iPXE by TFTP.
    Uefi,
    /// UEFI, which fetches iPXE by HTTP.
    UefiHttp,
}

/// The files and processes of `windlass metal serve`, and one virtual machine connected to it.
pub struct Rack<'a> {
    pub(crate) machines: &'a Machines,
    server: Option<Child>,
    tang: Option<Child>,
}

/// A Tang server, which unlocks encrypted volumes on its network.
pub struct TangServer {
    /// The server's URL.
    pub url: String,
    /// The thumbprint of its signing key.
    pub thumbprint: String,
}

/// The processes of a running virtual machine. Dropping it kills them.
pub struct RunningMachine(Vec<Child>);

impl Drop for RunningMachine {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(end);
    }
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

impl<'a> Rack<'a> {
    /// Creates a rack on the bridge of some machines. It boots no machine.
    #[track_caller]
    pub fn new(machines: &'a Machines) -> Self {
        let rack = Self { machines, server: None, tang: None };
        for directory in ["store/assets", "store/groups", "tftp"] {
            fs::create_dir_all(rack.path(directory))
                .unwrap_or_else(|e| panic!("creating {directory}: {e}"));
        }
        // UEFI firmware fetches iPXE; a BIOS machine has it in its network card.
        for place in ["tftp", "store/assets"] {
            let _ = fs::copy(LOADER, rack.path(place).join("ipxe.efi"));
        }
        let cable = "ip tuntap add dev t0 mode tap && ip link set t0 master br0 up";
        run(machines.bridge_command("sh", &["-c", cable]), b"").ok();
        rack
    }

    /// Returns the path of a file of the rack.
    pub fn path(&self, name: &str) -> PathBuf {
        self.machines.path(name)
    }

    pub(crate) fn path_string(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Runs `windlass metal` with these arguments on the machines' network.
    #[track_caller]
    pub fn metal(&self, args: &[&str]) -> Output {
        let program = binary().display().to_string();
        run(self.machines.bridge_command(&program, &[&["metal"], args].concat()), b"")
    }

    /// Runs `windlass metal` on this machine's own network, to fetch Debian's packages.
    #[track_caller]
    pub fn metal_outside(&self, args: &[&str]) -> Output {
        let mut command = Command::new(binary());
        command.arg("metal").args(args);
        run(command, b"")
    }

    /// Starts the server with the certificate `server.crt`, the key `server.key`, and the kubeconfig `admin.conf` if
    /// that file exists.
    #[track_caller]
    pub fn serve(&mut self, more: &[&str]) {
        let program = binary().display().to_string();
        let log = File::create(self.path("serve.log")).unwrap_or_else(|e| panic!("serve.log: {e}"));
        let mut command: Command = self.machines.bridge_command(&program, &["metal", "serve"]);
        command.args(["--address", &format!("{ADDRESS}:8080")]);
        command.args(["--tls-address", &format!("{ADDRESS}:8443"), "--interface", "br0"]);
        for (flag, name) in [
            ("--web-cert-file", "server.crt"),
            ("--web-key-file", "server.key"),
            ("--data-path", "store"),
            ("--assets-path", "store/assets"),
            ("--tftp-root", "tftp"),
            ("--dhcp-leasefile", "leases"),
            ("--machines-file", "machines"),
        ] {
            command.args([flag, &self.path_string(name)]);
        }
        if self.path("admin.conf").exists() {
            command.args(["--kubeconfig", &self.path_string("admin.conf")]);
        }
        let errors = log.try_clone().unwrap_or_else(|e| panic!("serve.log: {e}"));
        command.args(more).stdin(Stdio::null()).stdout(log).stderr(errors);
        let server = command.spawn().unwrap_or_else(|e| panic!("starting {command:?}: {e}"));
        self.server = Some(server);
    }

    /// Starts a Tang server with new keys.
    #[track_caller]
    pub fn tang(&mut self) -> TangServer {
        let keys = self.path("tang");
        fs::create_dir_all(&keys).unwrap_or_else(|e| panic!("creating tang: {e}"));
        let directory = self.path_string("tang");
        run(self.machines.bridge_command("/usr/libexec/tangd-keygen", &[&directory]), b"").ok();
        let listen = format!("TCP-LISTEN:7500,bind={ADDRESS},fork,reuseaddr");
        let answer = format!("EXEC:/usr/libexec/tangd {directory}");
        let mut command = self.machines.bridge_command("socat", &[&listen, &answer]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.tang = Some(command.spawn().unwrap_or_else(|e| panic!("starting {command:?}: {e}")));
        let keys = fs::read_dir(&keys).unwrap_or_else(|e| panic!("reading tang: {e}")).flatten();
        let signs =
            |path: &PathBuf| fs::read_to_string(path).is_ok_and(|text| text.contains("ES512"));
        let key = keys.map(|entry| entry.path()).find(signs);
        let thumbprint = key.and_then(|key| Some(key.file_stem()?.to_string_lossy().into_owned()));
        let thumbprint = thumbprint.unwrap_or_else(|| panic!("no signing key in {directory}"));
        TangServer { url: format!("http://{ADDRESS}:7500"), thumbprint }
    }

    /// Replaces the machine's disk by an empty one. The image is sparse, and blocks of zeros are not stored: a RAID
    /// that copies one disk to the other would fill the whole image otherwise.
    #[track_caller]
    pub fn wipe(&self, gibibytes: u64) {
        self.disk("disk.img", gibibytes);
    }

    /// Adds a second, empty disk to the machine.
    #[track_caller]
    pub fn second_disk(&self, gibibytes: u64) {
        self.disk(SECOND, gibibytes);
    }

    #[track_caller]
    fn disk(&self, name: &str, gibibytes: u64) {
        let disk = File::create(self.path(name));
        let sized = disk.and_then(|disk| disk.set_len(gibibytes << 30));
        sized.unwrap_or_else(|e| panic!("creating {name}: {e}"));
    }

    /// Adds a TPM to the machine. It keeps its secrets while the machine is off.
    #[track_caller]
    pub fn tpm(&self) {
        fs::create_dir_all(self.path(TPM)).unwrap_or_else(|e| panic!("creating {TPM}: {e}"));
    }

    /// Switches the machine on. Its console goes to `console.log`.
    #[track_caller]
    pub fn power_on(&self, mac: &str, boots: BootMethod) -> RunningMachine {
        let disk = |number: u8, name: &str| {
            let (index, file) = (number + 2, self.path_string(name));
            format!(
                " -drive if=none,id=d{number},format=raw,cache=unsafe,discard=unmap,detect-zeroes=unmap,file={file} \
                 -device virtio-blk-pci,drive=d{number},bootindex={index}"
            )
        };
        // Writing to memory whose code QEMU has translated is slow. A small translation cache makes the load of the
        // next system take seconds instead of minutes.
        let mut machine = format!(
            "-accel tcg,thread=multi,tb-size=64 -cpu max -M q35 -smp 2 -m 3072 -nodefaults -display none -monitor none \
             -serial file:{} -device virtio-rng-pci -netdev tap,id=n0,ifname=t0,script=no,downscript=no",
            self.path_string("console.log"),
        );
        machine += &disk(0, "disk.img");
        if self.path(SECOND).exists() {
            machine += &disk(1, SECOND);
        }
        let mut processes = Vec::new();
        if self.path(TPM).exists() {
            let socket = self.path_string("tpm.socket");
            processes.push(self.start_tpm(&socket));
            machine += &format!(
                " -chardev socket,id=tpm,path={socket} -tpmdev emulator,id=tpm,chardev=tpm -device tpm-tis,tpmdev=tpm"
            );
        }
        let mut words: Vec<String> = machine.split_whitespace().map(str::to_owned).collect();
        words.extend(self.firmware(mac, boots));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut command = self.machines.bridge_command("qemu-system-x86_64", &words);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        processes.push(command.spawn().unwrap_or_else(|e| panic!("starting {command:?}: {e}")));
        RunningMachine(processes)
    }

    /// Starts the TPM emulator, listening on a socket.
    #[track_caller]
    fn start_tpm(&self, socket: &str) -> Child {
        let _ = fs::remove_file(socket);
        let state = format!("dir={}", self.path_string(TPM));
        let control = format!("type=unixio,path={socket}");
        let words = ["socket", "--tpm2", "--tpmstate", &state, "--ctrl", &control];
        let mut command = self.machines.bridge_command("swtpm", &words);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().unwrap_or_else(|e| panic!("starting {command:?}: {e}"));
        until("the TPM's socket", || match fs::exists(socket) {
            Ok(true) => Ok(()),
            other => Err(format!("{socket}: {other:?}")),
        });
        child
    }

    #[track_caller]
    fn firmware(&self, mac: &str, boots: BootMethod) -> Vec<String> {
        let card = format!("virtio-net-pci,netdev=n0,mac={mac},bootindex=1");
        if boots == BootMethod::Bios {
            return vec!["-device".into(), card];
        }
        let variables = self.path("variables.fd");
        if !variables.exists() {
            fs::copy(VARIABLES, &variables).unwrap_or_else(|e| panic!("copying {VARIABLES}: {e}"));
        }
        let flash = |unit: u8, more: &str| format!("if=pflash,unit={unit},format=raw,{more}");
        let mut words = vec![
            "-drive".into(),
            flash(0, &format!("readonly=on,file={FIRMWARE}")),
            "-drive".into(),
            flash(1, &format!("file={}", variables.display())),
            "-device".into(),
            // Remove iPXE from the card, so that the firmware itself boots.
            format!("{card},romfile="),
            "-fw_cfg".into(),
            "name=opt/org.tianocore/IPv6PXESupport,string=n".into(),
        ];
        if boots == BootMethod::UefiHttp {
            words.push("-fw_cfg".into());
            words.push("name=opt/org.tianocore/IPv4PXESupport,string=n".into());
        }
        words
    }

    /// Returns the server's record of a machine, or an error if the server has none.
    pub fn record(&self, mac: &str) -> Result<Value, String> {
        let url = format!("http://{ADDRESS}:8080/machines.json");
        let ran = run(self.machines.bridge_command("curl", &["-sS", &url]), b"");
        let all: Value = serde_json::from_str(&ran.stdout).map_err(|_| ran.to_string())?;
        let found = all.as_array().and_then(|all| all.iter().find(|m| m["id"] == mac));
        found.cloned().ok_or_else(|| format!("{mac} is not in {all}"))
    }

    /// Returns the machine's page.
    #[track_caller]
    pub fn page(&self, mac: &str) -> String {
        let url = format!("http://{ADDRESS}:8080/machines/{mac}");
        run(self.machines.bridge_command("curl", &["-sS", &url]), b"").ok()
    }

    /// Returns the machine's status and the ends of the server's log and the console, for messages.
    pub fn diagnosis(&self, mac: &str) -> String {
        let tail = |name: &str| {
            let text = fs::read(self.path(name)).unwrap_or_default();
            String::from_utf8_lossy(&text[text.len().saturating_sub(6000)..]).into_owned()
        };
        let machines = self.path_string("machines");
        let status = self.metal(&["status", mac, "--machines-file", &machines]);
        format!("{status}\n--- server\n{}\n--- console\n{}", tail("serve.log"), tail("console.log"))
    }
}

impl Drop for Rack<'_> {
    fn drop(&mut self) {
        for server in [&mut self.server, &mut self.tang] {
            server.iter_mut().for_each(end);
        }
    }
}
