//! A machine of its own kernel and service manager, which commands reach by SSH.

use std::fs;

use crate::{
    Rack, Ran,
    cluster::tool,
    process::{run, until},
};

const KEY: &str = "ssh.key";
const KUBECONFIG: &str = "guest.conf";

/// A machine on the rack that lets the bearer of a key in as root.
pub struct Guest<'a> {
    rack: &'a Rack<'a>,
    address: String,
}

impl<'a> Guest<'a> {
    /// A machine that will have this address, and a key for it.
    #[track_caller]
    pub fn new(rack: &'a Rack<'a>, address: &str) -> Self {
        let key = rack.named(KEY);
        let words = ["-q", "-t", "ed25519", "-N", "", "-C", "e2e", "-f", &key];
        run(rack.machines.between("ssh-keygen", &words), b"").ok();
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

    /// Runs a shell script on the machine. A machine that does not answer is like a script that fails.
    #[track_caller]
    pub fn run(&self, script: &str) -> Ran {
        let (key, root) = (self.rack.named(KEY), format!("root@{}", self.address));
        // Its own key is made at its first boot, so that nobody can know it.
        let options = "BatchMode=yes ConnectTimeout=20 LogLevel=ERROR StrictHostKeyChecking=no \
                       UserKnownHostsFile=/dev/null";
        let mut words = vec!["-i", &key];
        words.extend(options.split_whitespace().flat_map(|option| ["-o", option]));
        words.extend([root.as_str(), script]);
        run(self.rack.machines.between("ssh", &words), b"")
    }

    /// Returns the output of a script. It is run again while the machine is too busy to answer.
    #[track_caller]
    pub fn say(&self, script: &str) -> String {
        until(script, || self.run(script).when(|_| true))
    }

    /// kubectl, which is not on the machine, as the administrator of the cluster that the machine has become.
    #[track_caller]
    pub fn kubectl(&self, line: &str, input: &str) -> Ran {
        let kubeconfig = self.rack.path(KUBECONFIG);
        if !kubeconfig.exists() {
            let text = self.say("cat /etc/kubernetes/admin.conf");
            fs::write(&kubeconfig, text).unwrap_or_else(|e| panic!("writing {KUBECONFIG}: {e}"));
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut command = self.rack.machines.between(&tool("kubectl"), &words);
        command.env("KUBECONFIG", &kubeconfig).env("HOME", self.rack.path(""));
        run(command, input.as_bytes())
    }
}
