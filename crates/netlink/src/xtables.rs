//! iptables, by its programs: it has no other interface that holds across its two kinds (legacy and over nftables).

use std::{
    collections::BTreeMap,
    io::Write,
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use net_core::{
    Family,
    xtables::{self, Chains, Installed, STATE_CHAIN},
};

use crate::{Error, Written, nft};

#[derive(Debug, thiserror::Error)]
pub enum XtablesError {
    #[error("running {program}: {source}; install the package iptables")]
    Start { program: &'static str, source: std::io::Error },
    #[error("{program} refused: {message}")]
    Refused { program: &'static str, message: String },
}

/// What keeps chains in the kernel.
pub trait Xtables: Send + Sync {
    /// What `iptables-save` prints of a table.
    fn save(&self, family: Family, table: &str) -> Result<String, Error>;
    fn has_chain(&self, family: Family, table: &str, chain: &str) -> Result<bool, Error>;
    /// Feeds `iptables-restore`, each table of which is one transaction.
    fn restore(&self, family: Family, input: &str) -> Result<(), Error>;
}

/// The programs of this machine.
pub struct Iptables;

impl Iptables {
    pub fn is_installed() -> bool {
        path(RESTORE[0]).is_some()
    }
}

const SAVE: [&str; 2] = ["iptables-save", "ip6tables-save"];
const LIST: [&str; 2] = ["iptables", "ip6tables"];
const RESTORE: [&str; 2] = ["iptables-restore", "ip6tables-restore"];

fn of(programs: [&'static str; 2], family: Family) -> &'static str {
    let [v4, v6] = programs;
    if family == Family::V4 { v4 } else { v6 }
}

fn path(program: &str) -> Option<PathBuf> {
    let found = nft::find(program);
    found.is_absolute().then_some(found)
}

fn ended(program: &'static str, output: Output) -> Result<String, Error> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(XtablesError::Refused { program, message }.into())
}

impl Xtables for Iptables {
    fn save(&self, family: Family, table: &str) -> Result<String, Error> {
        let program = of(SAVE, family);
        let output =
            Command::new(nft::find(program)).args(["-t", table]).stdin(Stdio::null()).output();
        ended(program, output.map_err(|source| XtablesError::Start { program, source })?)
    }

    fn has_chain(&self, family: Family, table: &str, chain: &str) -> Result<bool, Error> {
        let program = of(LIST, family);
        let mut command = Command::new(nft::find(program));
        command.args(["--wait", "5", "-t", table, "-S", chain, "1"]).stdin(Stdio::null());
        let output = command.output().map_err(|source| XtablesError::Start { program, source })?;
        // It has one code for a chain that is not there, and others for what went wrong.
        if output.status.code() == Some(1) {
            Ok(false)
        } else {
            ended(program, output).map(|_| true)
        }
    }

    fn restore(&self, family: Family, input: &str) -> Result<(), Error> {
        let program = of(RESTORE, family);
        let failed = |source| XtablesError::Start { program, source };
        let mut command = Command::new(nft::find(program));
        // Others may hold the lock for a moment.
        command.args(["--noflush", "--wait", "5"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let stdin = child.stdin.take();
        let output = std::thread::scope(|scope| {
            scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input.as_bytes())));
            child.wait_with_output()
        });
        ended(program, output.map_err(failed)?).map(drop)
    }
}

/// Keeps one family's chains as they should be; as [`crate::TableWriter`] does with a table.
#[derive(Default)]
pub struct ChainWriter {
    installed: Option<Chains>,
}

impl ChainWriter {
    /// `new` is sealed. Chains that are not `needed` are still kept up where they exist, but not made.
    pub fn write(
        &mut self,
        kernel: &dyn Xtables,
        new: Chains,
        needed: bool,
    ) -> Result<Written, Error> {
        if let Some(old) = &self.installed {
            let (input, operations) = xtables::restore(old, &new);
            if input.is_empty() {
                return Ok(Written::default());
            }
            match kernel.restore(new.family, &input) {
                Ok(()) => {
                    self.installed = Some(new);
                    return Ok(Written { transactions: 1, operations });
                }
                Err(error) => {
                    tracing::warn!(%error, family = new.family.nft(), "the chains are not as they were left; looking at them");
                    self.installed = None;
                }
            }
        }
        let found = look(kernel, &new)?;
        if new.is_installed(&found) {
            self.installed = Some(new);
            return Ok(Written::default());
        }
        if !needed && !xtables::is_there(&found) {
            return Ok(Written::default());
        }
        let (input, operations) = xtables::resync(&found, &new);
        kernel.restore(new.family, &input)?;
        self.installed = Some(new);
        Ok(Written { transactions: 1, operations })
    }

    /// Notices that someone else removed the chains (a firewall's reload flushes everything), so that the next write makes
    /// them again. Returns whether all was as it was left.
    pub fn check(&mut self, kernel: &dyn Xtables) -> Result<bool, Error> {
        let Some(chains) = &self.installed else { return Ok(true) };
        let mut intact = true;
        for table in chains.tables() {
            intact &= kernel.has_chain(chains.family, table, STATE_CHAIN)?;
        }
        if intact {
            return Ok(true);
        }
        tracing::warn!(
            family = chains.family.nft(),
            "someone removed chains of Services; writing them again"
        );
        self.installed = None;
        Ok(false)
    }
}

fn look(kernel: &dyn Xtables, of: &Chains) -> Result<BTreeMap<&'static str, Installed>, Error> {
    let each = |table| Ok((table, Installed::parse(&kernel.save(of.family, table)?)));
    of.tables().map(each).collect()
}

/// Takes the chains away, and what leads to them; those of an earlier proxy, too.
pub fn remove_chains(kernel: &dyn Xtables, of: &Chains) -> Result<(), Error> {
    let found = look(kernel, of)?;
    match xtables::remove(&found, of) {
        nothing if nothing.is_empty() => Ok(()),
        input => kernel.restore(of.family, &input),
    }
}
