//! A virtual machine with its own kernel and service manager, controlled over SSH.

use std::fs;

use crate::{
    process::{Output, run, until},
    programs::tool,
    rack::Rack,
};

const KEY: &str = "ssh.key";
const KUBECONFIG: &str = "guest.conf";

/// A machine on the rack that accepts SSH logins of root with a generated key.
pub struct Guest<'a> {
    rack: &'a Rack<'a>,
    address: String,
}

impl<'a> Guest<'a> {
    /// Generates the SSH key of a machine that will have this address.
    #[track_caller]
    pub fn new(rack: &'a Rack<'a>, address: &str) -> Self {
        let key = rack.path_string(KEY);
        let words = ["-q", "-t", "ed25519", "-N", "", "-C", "e2e", "-f", &key];
        run(rack.machines.bridge_command("ssh-keygen", &words), b"").ok();
        Self { rack, address: address.to_owned() }
    }

    /// Returns the public key that the machine accepts.
    #[track_caller]
    pub fn public_key(&self) -> String {
        let path = self.rack.path(&format!("{KEY}.pub"));
        let text = fs::read_to_string(&path);
        let text = text.unwrap_or_else(|e| panic!("reading {}: {e}", path.display()));
        text.trim().to_owned()
    }

    /// Runs a shell script on the machine. If the machine does not answer, the result is a failure.
    #[track_caller]
    pub fn run(&self, script: &str) -> Output {
        let (key, root) = (self.rack.path_string(KEY), format!("root@{}", self.address));
        // The machine generates its host key at first boot, so no test can know it in advance.
        let options = "BatchMode=yes ConnectTimeout=20 LogLevel=ERROR StrictHostKeyChecking=no \
                       UserKnownHostsFile=/dev/null";
        let mut words = vec!["-i", &key];
        words.extend(options.split_whitespace().flat_map(|option| ["-o", option]));
        words.extend([root.as_str(), script]);
        run(self.rack.machines.bridge_command("ssh", &words), b"")
    }

    /// Returns the output of a script. Repeats the script until it succeeds, because a busy machine may not answer.
    #[track_caller]
    pub fn output(&self, script: &str) -> String {
        until(script, || self.run(script).ok_if(|_| true))
    }

    /// Runs kubectl from outside the machine, as administrator of the machine's cluster.
    #[track_caller]
    pub fn kubectl(&self, line: &str, input: &str) -> Output {
        let kubeconfig = self.rack.path(KUBECONFIG);
        if !kubeconfig.exists() {
            let text = self.output("cat /etc/kubernetes/admin.conf");
            fs::write(&kubeconfig, text).unwrap_or_else(|e| panic!("writing {KUBECONFIG}: {e}"));
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut command = self.rack.machines.bridge_command(&tool("kubectl"), &words);
        command.env("KUBECONFIG", &kubeconfig).env("HOME", self.rack.path(""));
        run(command, input.as_bytes())
    }
}
