//! Runs the program `nft`.

use std::{
    io::Write,
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use net_core::{
    Family,
    nft::{InstalledTable, STATE_CHAIN},
};
use serde::{Deserialize, de::DeserializeOwned};

use crate::{
    error::{Error, NftError},
    socket::{Operation, Socket},
    wire::{ACK, Message, attribute},
};

pub(crate) fn program() -> PathBuf {
    find("nft")
}

/// Reports whether the program `nft` is installed.
pub fn has_nft() -> bool {
    program().is_absolute()
}

/// Finds a program in `PATH` or in the usual directories, which are not in every service's `PATH`.
pub(crate) fn find(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let mut candidates =
        std::env::split_paths(&path).chain(usual).map(|directory| directory.join(name));
    candidates.find(|candidate| candidate.exists()).unwrap_or_else(|| name.into())
}

/// Runs one transaction with `nft -f -`.
pub(crate) fn run(transaction: &str) -> Result<(), NftError> {
    let output =
        feed(Command::new(program()).args(["-f", "-"]), transaction).map_err(NftError::Start)?;
    if output.status.success() { Ok(()) } else { Err(refusal(&output, transaction)) }
}

/// Runs a command with `input`, and collects its standard error.
pub(crate) fn feed(command: &mut Command, input: &str) -> std::io::Result<Output> {
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let stdin = child.stdin.take();
    // Written by a separate thread, so that the program cannot block while its standard error is not read.
    std::thread::scope(|scope| {
        scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input.as_bytes())));
        child.wait_with_output()
    })
}

/// Returns nft's first message with the line that it refers to.
fn refusal(output: &Output, transaction: &str) -> NftError {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let message = stderr.lines().next().unwrap_or("no reason given").to_owned();
    let number = message.split(':').nth(1).and_then(|number| number.parse::<usize>().ok());
    let line = number.and_then(|number| transaction.lines().nth(number.checked_sub(1)?));
    NftError::Refused { line: line.unwrap_or_default().to_owned(), message }
}

#[derive(Deserialize)]
pub(crate) struct Listing {
    nftables: Vec<Object>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Object {
    chain: Option<NamedObject>,
    set: Option<NamedObject>,
    map: Option<NamedObject>,
    rule: Option<Rule>,
}

#[derive(Deserialize)]
struct NamedObject {
    name: String,
}

#[derive(Deserialize)]
struct Rule {
    chain: String,
    comment: Option<String>,
}

/// Lists one table as JSON. `flags` are `-t` to omit the elements of sets, or `-a` to include the handles of rules.
pub(crate) fn listing<T: DeserializeOwned>(
    flags: &str,
    family: Family,
    table: &str,
) -> Result<T, NftError> {
    let output = Command::new(program())
        .args(["-j", flags, "list", "table", family.nft(), table])
        .stdin(Stdio::null())
        .output()
        .map_err(NftError::Start)?;
    let failed = |message: String| NftError::List { table: table.to_owned(), message };
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))
}

pub(crate) fn list(family: Family, table: &str) -> Result<InstalledTable, NftError> {
    let listing: Listing = listing("-t", family, table)?;
    let mut installed = InstalledTable::default();
    for object in listing.nftables {
        installed.chains.extend(object.chain.map(|chain| chain.name));
        installed.sets.extend(object.set.map(|set| (set.name, false)));
        installed.sets.extend(object.map.map(|map| (map.name, true)));
        if let Some(rule) = object.rule.filter(|rule| rule.chain == STATE_CHAIN) {
            installed.digest = rule.comment;
        }
    }
    Ok(installed)
}

/// Queries the kernel without starting a process.
pub(crate) fn has_table(socket: &Socket, family: Family, table: &str) -> Result<bool, Error> {
    const GET_TABLE: u16 = 0x0a01;
    const NAME: u16 = 1;
    let number = if family == Family::V4 { 2 } else { 10 };
    let mut message = Message::new(GET_TABLE, ACK, &[number, 0, 0, 0]);
    message.text(NAME, table);
    let found = socket.get(Operation("looking up nftables table", &table), &mut message, |body| {
        attribute(body.get(4..)?, NAME).map(drop)
    });
    Ok(found?.is_some())
}
