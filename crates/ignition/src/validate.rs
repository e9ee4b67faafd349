//! Rules that a config must keep beyond its shape. Only what could not be carried out, or would be carried out
//! otherwise than written, is an error.

use std::collections::BTreeSet;

use crate::{
    ConfigError,
    gpt::Guid,
    paths,
    spec::{
        Clevis, Config, Disk, Filesystem, Header, Luks, Owner, Partition, Raid, Resource, Storage,
        Unit,
    },
};

type Outcome = Result<(), ConfigError>;

fn fail(path: impl Into<String>, reason: impl Into<String>) -> Outcome {
    Err(ConfigError::Invalid { path: path.into(), reason: reason.into() })
}

pub(crate) fn validate(config: &Config) -> Outcome {
    let references = &config.ignition.config;
    for (i, reference) in references.merge.iter().enumerate() {
        resource(&format!("ignition.config.merge.{i}"), reference, true)?;
    }
    resource("ignition.config.replace", &references.replace, false)?;
    for (i, authority) in config.ignition.security.tls.certificate_authorities.iter().enumerate() {
        resource(&format!("ignition.security.tls.certificateAuthorities.{i}"), authority, true)?;
    }
    repeated(config)?;
    let proxy = &config.ignition.proxy;
    for (name, url) in [("httpProxy", &proxy.http_proxy), ("httpsProxy", &proxy.https_proxy)] {
        let scheme = url.as_deref().map(|url| url.split_once(':').map_or("", |(scheme, _)| scheme));
        if scheme
            .is_some_and(|s| !s.eq_ignore_ascii_case("http") && !s.eq_ignore_ascii_case("https"))
        {
            return fail(format!("ignition.proxy.{name}"), "proxies must be http(s)");
        }
    }
    let storage = &config.storage;
    each("storage.disks", &storage.disks, disk)?;
    each("storage.raid", &storage.raid, raid)?;
    each("storage.luks", &storage.luks, luks)?;
    each("storage.filesystems", &storage.filesystems, filesystem)?;
    nodes(config)?;
    each("systemd.units", &config.systemd.units, unit)
}

fn each<T>(path: &str, items: &[T], check: impl Fn(&str, &T) -> Outcome) -> Outcome {
    items.iter().enumerate().try_for_each(|(i, item)| check(&format!("{path}.{i}"), item))
}

/// Refuses a list that says the same twice. Options may: what they mean is for the programs that take them.
fn distinct<'k>(path: impl Into<String>, keys: impl IntoIterator<Item = &'k str>) -> Outcome {
    let (path, mut seen) = (path.into(), BTreeSet::new());
    match keys.into_iter().enumerate().find(|(_, key)| !seen.insert(*key)) {
        Some((i, _)) => fail(format!("{path}.{i}"), "duplicate entry defined"),
        None => Ok(()),
    }
}

/// Lists of lists' items and of the config's head; the lists of named things are looked at where their names are.
fn repeated(config: &Config) -> Outcome {
    let texts = |path: &str, list: &[String]| distinct(path, list.iter().map(String::as_str));
    let sources = |path: &str, list: &[Resource]| {
        distinct(path, list.iter().filter_map(|resource| resource.source.as_deref()))
    };
    let (head, arguments) = (&config.ignition, &config.kernel_arguments);
    sources("ignition.config.merge", &head.config.merge)?;
    let authorities = &head.security.tls.certificate_authorities;
    sources("ignition.security.tls.certificateAuthorities", authorities)?;
    texts("ignition.proxy.noProxy", &head.proxy.no_proxy)?;
    texts("kernelArguments.shouldExist", &arguments.should_exist)?;
    texts("kernelArguments.shouldNotExist", &arguments.should_not_exist)?;
    each("passwd.users", &config.passwd.users, |path, user| {
        texts(&format!("{path}.groups"), &user.groups)?;
        texts(&format!("{path}.sshAuthorizedKeys"), &user.ssh_authorized_keys)
    })?;
    each("storage.raid", &config.storage.raid, |path, raid| {
        texts(&format!("{path}.devices"), &raid.devices)
    })?;
    each("storage.luks", &config.storage.luks, |path, luks| {
        let servers = luks.clevis.tang.iter().map(|tang| tang.url.as_str());
        distinct(format!("{path}.clevis.tang"), servers)
    })?;
    each("systemd.units", &config.systemd.units, |path, unit| {
        let dropins = unit.dropins.iter().map(|dropin| dropin.name.as_str());
        distinct(format!("{path}.dropins"), dropins)
    })
}

fn resource(path: &str, resource: &Resource, required: bool) -> Outcome {
    let headers = resource.http_headers.iter().map(|header| header.name.as_str());
    distinct(format!("{path}.httpHeaders"), headers)?;
    each(&format!("{path}.httpHeaders"), &resource.http_headers, |path, header| match header {
        Header { name, .. } if name.is_empty() => {
            fail(format!("{path}.name"), "a header needs a name")
        }
        Header { value: Some(value), .. } if value.is_empty() => fail(
            format!("{path}.value"),
            "a header's value is empty; without one, the header is left out",
        ),
        _ => Ok(()),
    })?;
    if resource.source.is_none() && resource.verification.hash.is_some() {
        return fail(format!("{path}.verification.hash"), "a hash is given, and no source");
    }
    let Some(source) = resource.url() else {
        if !resource.http_headers.is_empty() {
            return fail(format!("{path}.httpHeaders"), "HTTP headers are given, and no source");
        }
        return match required {
            true => fail(format!("{path}.source"), "source is required"),
            false => Ok(()),
        };
    };
    let scheme = source.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
    let http = matches!(scheme.as_deref(), Some("http" | "https"));
    match scheme.as_deref() {
        Some("http" | "https" | "tftp" | "data" | "s3" | "arn" | "gs") => {}
        _ => return fail(format!("{path}.source"), format!("invalid url scheme in {source:?}")),
    }
    if !http && !resource.http_headers.is_empty() {
        return fail(
            format!("{path}.httpHeaders"),
            "cannot use HTTP headers with this source scheme",
        );
    }
    match resource.compression.as_deref() {
        None | Some("" | "gzip") => {}
        Some(_) => return fail(format!("{path}.compression"), "invalid compression method"),
    }
    let Some(hash) = resource.verification.hash.as_deref() else { return Ok(()) };
    let place = format!("{path}.verification.hash");
    let length = match hash.split_once('-') {
        None => return fail(place, "unable to parse hash; write sha512-HEX or sha256-HEX"),
        Some(("sha512", _)) => 128,
        Some(("sha256", _)) => 64,
        Some(_) => return fail(place, "unrecognized hash function; use sha512 or sha256"),
    };
    let sum = hash.split_once('-').map_or("", |(_, sum)| sum);
    if sum.len() != length || !sum.bytes().all(|b| b.is_ascii_hexdigit()) {
        return fail(place, "incorrect size for hash sum");
    }
    Ok(())
}

fn disk(path: &str, disk: &Disk) -> Outcome {
    absolute(&format!("{path}.device"), &disk.device)?;
    let mut numbers = BTreeSet::new();
    let mut labels = BTreeSet::new();
    for (i, partition) in disk.partitions.iter().enumerate() {
        let path = format!("{path}.partitions.{i}");
        self::partition(&path, partition)?;
        if partition.number != 0 && !numbers.insert(partition.number) {
            return fail(format!("{path}.number"), "multiple partitions have the same number");
        }
        let label = partition.label.as_deref().filter(|label| !label.is_empty());
        if label.is_some_and(|label| !labels.insert(label)) {
            return fail(format!("{path}.label"), "multiple partitions have the same label");
        }
    }
    // Only places that are given can be compared; the plan looks at the others.
    let mut places: Vec<(u64, u64)> = disk
        .partitions
        .iter()
        .filter_map(|p| Some((p.start_mib.filter(|s| *s > 0)?, p.size_mib.filter(|s| *s > 0)?)))
        .collect();
    places.sort_unstable();
    match places.windows(2).any(|pair| pair[0].0.saturating_add(pair[0].1) > pair[1].0) {
        true => fail(format!("{path}.partitions"), "partitions overlap"),
        false => Ok(()),
    }
}

fn partition(path: &str, partition: &Partition) -> Outcome {
    let set = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    if partition.number == 0 && !set(&partition.label) {
        return fail(path, "a partition number >= 1 or a label must be specified");
    }
    if partition.should_exist == Some(false) {
        let described = set(&partition.label)
            || set(&partition.type_guid)
            || set(&partition.guid)
            || partition.start_mib.is_some()
            || partition.size_mib.is_some();
        if described {
            return fail(path, "shouldExist is false, so nothing but number may be specified");
        }
    }
    if let Some(label) = &partition.label {
        // sgdisk cannot write a colon, so configs that upstream would refuse are refused.
        if label.encode_utf16().count() > 36 || label.contains(':') {
            return fail(
                format!("{path}.label"),
                "partition labels have at most 36 characters and no colon",
            );
        }
    }
    for (name, text) in [("guid", &partition.guid), ("typeGuid", &partition.type_guid)] {
        if let Some(text) =
            text.as_deref().filter(|text| !text.is_empty() && Guid::parse(text).is_none())
        {
            return fail(
                format!("{path}.{name}"),
                format!(
                    "{text:?} does not match the form \"01234567-89AB-CDEF-EDCB-A98765432101\""
                ),
            );
        }
    }
    Ok(())
}

fn raid(path: &str, raid: &Raid) -> Outcome {
    let spares = match raid.level.as_deref() {
        Some("linear" | "raid0" | "0" | "stripe") => false,
        Some(
            "raid1" | "1" | "mirror" | "raid4" | "4" | "raid5" | "5" | "raid6" | "6" | "raid10"
            | "10",
        ) => true,
        _ => return fail(format!("{path}.level"), "unrecognized raid level"),
    };
    if !spares && raid.spares.is_some_and(|spares| spares > 0) {
        return fail(format!("{path}.spares"), "spares unsupported for linear and raid0 arrays");
    }
    if raid.devices.is_empty() {
        return fail(format!("{path}.devices"), "raid devices required");
    }
    each(&format!("{path}.devices"), &raid.devices, |path, device| absolute(path, device))
}

fn luks(path: &str, luks: &Luks) -> Outcome {
    if luks.name.contains('/') {
        return fail(format!("{path}.name"), "device names cannot contain a slash");
    }
    match luks.device.as_deref() {
        None | Some("") => return fail(format!("{path}.device"), "missing device"),
        Some(device) => absolute(&format!("{path}.device"), device)?,
    }
    if luks.label.as_deref().is_some_and(|label| label.len() > 47) {
        return fail(
            format!("{path}.label"),
            "luks device labels cannot be longer than 47 characters",
        );
    }
    resource(&format!("{path}.keyFile"), &luks.key_file, false)?;
    if luks.cex.enabled == Some(true) {
        if luks.clevis != Clevis::default() {
            return fail(format!("{path}.cex"), "cannot use cex with clevis");
        }
        if luks.key_file.url().is_some() {
            return fail(format!("{path}.cex"), "cannot use key file with cex");
        }
    }
    crate::clevis::validate(&format!("{path}.clevis"), &luks.clevis)
}

fn filesystem(path: &str, filesystem: &Filesystem) -> Outcome {
    absolute(&format!("{path}.device"), &filesystem.device)?;
    let Some(format) = filesystem.format.as_deref().filter(|format| !format.is_empty()) else {
        let used =
            [&filesystem.path, &filesystem.label, &filesystem.uuid].iter().any(|t| t.is_some())
                || filesystem.wipe_filesystem == Some(true)
                || !filesystem.options.is_empty()
                || !filesystem.mount_options.is_empty();
        return match used {
            true => fail(path, "format must be specified"),
            false => Ok(()),
        };
    };
    let longest = match format {
        "ext4" => 16,
        "btrfs" => 256,
        "xfs" => 12,
        "vfat" => 11,
        "swap" => 15,
        "none" => 0,
        _ => {
            return fail(format!("{path}.format"), format!("invalid filesystem format {format:?}"));
        }
    };
    if filesystem.label.as_deref().is_some_and(|label| label.len() > longest) {
        return fail(
            format!("{path}.label"),
            format!("a label of {format} has at most {longest} bytes"),
        );
    }
    match filesystem.path.as_deref() {
        None | Some("") => Ok(()),
        Some(mount) => absolute(&format!("{path}.path"), mount),
    }
}

fn nodes(config: &Config) -> Outcome {
    let storage = &config.storage;
    let owners = |path: &str, user: &Owner, group: &Owner| {
        for (name, owner) in [("user", user), ("group", group)] {
            if owner.id.is_some() && owner.name.as_deref().is_some_and(|name| !name.is_empty()) {
                return fail(format!("{path}.{name}"), "cannot set both id and name");
            }
        }
        Ok(())
    };
    let mode = |path: &str, mode: Option<u32>| match mode {
        Some(mode) if mode > 0o7777 => fail(format!("{path}.mode"), "illegal file mode"),
        _ => Ok(()),
    };
    each("storage.files", &storage.files, |path, file| {
        owners(path, &file.user, &file.group)?;
        mode(path, file.mode)?;
        if file.overwrite == Some(true) && file.contents.source.is_none() {
            return fail(
                format!("{path}.contents.source"),
                "overwrite is true, so contents must be specified",
            );
        }
        resource(&format!("{path}.contents"), &file.contents, false)?;
        each(&format!("{path}.append"), &file.append, |path, part| resource(path, part, true))
    })?;
    each("storage.directories", &storage.directories, |path, directory| {
        owners(path, &directory.user, &directory.group)?;
        mode(path, directory.mode)
    })?;
    each("storage.links", &storage.links, |path, link| {
        owners(path, &link.user, &link.group)?;
        match link.target.as_deref() {
            None | Some("") => fail(format!("{path}.target"), "missing link target"),
            Some(target) if link.hard == Some(true) => {
                match storage.directories.iter().any(|directory| directory.path == target) {
                    true => fail(path, "hard link target is a directory"),
                    false => Ok(()),
                }
            }
            Some(_) => Ok(()),
        }
    })?;
    beside_units(config)?;
    let beneath = |path: &str, parent: &str| {
        path.strip_prefix(parent.trim_end_matches('/'))
            .is_some_and(|rest| rest.starts_with('/') && rest.len() > 1)
    };
    let files = storage.files.iter().map(|file| ("files", &file.path));
    let directories = storage.directories.iter().map(|directory| ("directories", &directory.path));
    let links = storage.links.iter().map(|link| ("links", &link.path));
    let all: Vec<_> = files.chain(directories).chain(links).collect();
    for (kind, parent) in all.iter().filter(|(kind, _)| *kind != "directories") {
        if let Some((other, path)) = all.iter().find(|(_, path)| beneath(path, parent)) {
            return fail(
                format!("storage.{other}"),
                format!("{path} lies beneath {parent}, which is in storage.{kind}"),
            );
        }
    }
    Ok(())
}

/// What a unit writes, no other part of the config writes as well.
fn beside_units(config: &Config) -> Outcome {
    let has = |contents: &Option<String>| contents.as_deref().is_some_and(|text| !text.is_empty());
    let mut written = BTreeSet::new();
    for unit in &config.systemd.units {
        let place = format!("/etc/systemd/system/{}", unit.name);
        let dropins = unit.dropins.iter().filter(|dropin| has(&dropin.contents));
        written.extend(dropins.map(|dropin| format!("{place}.d/{}", dropin.name)));
        if has(&unit.contents) {
            written.insert(place);
        }
    }
    let Storage { files, directories, links, .. } = &config.storage;
    let free = |path: &str, place: &str| match written.contains(place) {
        true => fail(format!("{path}.path"), "path conflicts with a systemd unit or drop-in"),
        false => Ok(()),
    };
    each("storage.files", files, |path, file| free(path, &file.path))?;
    each("storage.directories", directories, |path, directory| free(path, &directory.path))?;
    each("storage.links", links, |path, link| free(path, &link.path))
}

fn unit(path: &str, unit: &Unit) -> Outcome {
    let kinds = [
        "service",
        "socket",
        "device",
        "mount",
        "automount",
        "swap",
        "target",
        "path",
        "timer",
        "snapshot",
        "slice",
        "scope",
    ];
    let kind = unit.name.rsplit_once('.').map_or("", |(_, kind)| kind);
    if !kinds.contains(&kind) || unit.name.contains('/') {
        return fail(format!("{path}.name"), "invalid systemd unit extension");
    }
    if let Some(contents) = &unit.contents {
        sections(&format!("{path}.contents"), contents)?;
    }
    each(&format!("{path}.dropins"), &unit.dropins, |path, dropin| {
        if !dropin.name.ends_with(".conf") || dropin.name.contains('/') {
            return fail(format!("{path}.name"), "invalid systemd drop-in extension");
        }
        sections(&format!("{path}.contents"), dropin.contents.as_deref().unwrap_or_default())
    })
}

/// A unit's text is sections of assignments. As upstream's reader has it, what stands before the first means nothing.
fn sections(path: &str, text: &str) -> Outcome {
    let wrong = |what: String| fail(path, format!("invalid unit content: {what}"));
    let mut rest = first_section(text);
    while !rest.is_empty() {
        let (line, more) = rest.split_once('\n').unwrap_or((rest, ""));
        if let Some(name) = rest.strip_prefix('[') {
            let Some((_, after)) = name.split_once(']') else {
                return wrong("unable to find end of section".into());
            };
            let (behind, more) = after.split_once('\n').unwrap_or((after, ""));
            if !behind.trim().is_empty() {
                return wrong(format!("found garbage after section name {behind:?}"));
            }
            rest = more.trim_start();
            continue;
        }
        rest = more;
        if !line.starts_with(['#', ';']) && !line.contains('=') {
            return wrong(format!("{line:?} is neither a section nor an assignment"));
        }
        let mut line = line;
        while line.ends_with('\\') {
            (line, rest) = rest.split_once('\n').unwrap_or((rest, ""));
        }
        rest = rest.trim_start();
    }
    Ok(())
}

/// The text from its first bracket on that is in no comment.
fn first_section(text: &str) -> &str {
    let mut rest = text;
    while let Some(at) = rest.find(['[', '#', ';']) {
        rest = &rest[at..];
        if rest.starts_with('[') {
            return rest;
        }
        rest = rest.split_once('\n').map_or("", |(_, more)| more);
    }
    ""
}

fn absolute(path: &str, text: &str) -> Outcome {
    paths::check(text).or_else(|reason| fail(path, reason))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused() {
        let unit = json!({ "units": [{ "name": "a.service", "contents": "[X]", "dropins": [{ "name": "b.conf", "contents": "[X]" }] }] });
        let file = |contents: Value| json!({ "storage": { "files": [{ "path": "/a", "contents": contents }] } });
        let at =
            |path: &str| json!({ "systemd": unit, "storage": { "files": [{ "path": path }] } });
        let luks = |more: Value| {
            let mut volume = json!({ "name": "a", "device": "/dev/a", "cex": { "enabled": true } });
            volume.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
            json!({ "storage": { "luks": [volume] } })
        };
        let hard = |target: &str| {
            let link = json!({ "path": "/l", "target": target, "hard": true });
            json!({ "storage": { "links": [link], "directories": [{ "path": "/d" }] } })
        };
        let proxy = |url: &str| json!({ "ignition": { "proxy": { "httpsProxy": url } } });
        let header = |header: Value| file(json!({ "source": "http://a", "httpHeaders": [header] }));
        let hash = format!("sha256-{}", "0".repeat(64));
        for (config, want) in [
            (proxy("http://a"), ""),
            (proxy("ftp://a"), "$.ignition.proxy.httpsProxy"),
            (proxy("a:80"), "$.ignition.proxy.httpsProxy"),
            (header(json!({ "name": "a", "value": "b" })), ""),
            (header(json!({ "name": "a" })), ""),
            (header(json!({ "name": "", "value": "b" })), "httpHeaders.0.name"),
            (header(json!({ "name": "a", "value": "" })), "httpHeaders.0.value"),
            (file(json!({ "httpHeaders": [{ "name": "a" }] })), "contents.httpHeaders"),
            (file(json!({ "verification": { "hash": hash } })), "contents.verification.hash"),
            (file(json!({ "source": "data:,", "verification": { "hash": hash } })), ""),
            (
                json!({ "kernelArguments": { "shouldExist": ["a", "b", "a"] } }),
                "shouldExist.2: dup",
            ),
            (
                json!({ "passwd": { "users": [{ "name": "a", "groups": ["b", "b"] }] } }),
                "groups.1: dup",
            ),
            (luks(json!({})), ""),
            (luks(json!({ "options": ["-a", "-a"] })), ""),
            (luks(json!({ "clevis": { "tpm2": true } })), "luks.0.cex"),
            (luks(json!({ "keyFile": { "source": "data:,a" } })), "luks.0.cex"),
            (hard("/e"), ""),
            (hard("/d"), "links.0: hard link"),
            (at("/etc/systemd/system/c.service"), ""),
            (
                json!({ "storage": { "disks": [{ "device": "/dev/vda/" }] } }),
                "disks.0.device: path is not fully simplified",
            ),
            (at("/etc/systemd/system/a.service"), "files.0.path: path conflicts"),
            (at("/etc/systemd/system/a.service.d/b.conf"), "files.0.path: path conflicts"),
            (
                json!({ "storage": { "filesystems": [{ "device": "/dev/a", "wipeFilesystem": true }] } }),
                "filesystems.0: format",
            ),
        ] {
            let said = validate(&serde_json::from_value(config.clone()).unwrap());
            let said = said.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(said.contains(want) && said.is_empty() == want.is_empty(), "{config}: {said}");
        }
    }

    #[test]
    fn units_are_sections_of_assignments() {
        for text in [
            "",
            "garbage",
            "# [a\nx [A]\nX=1",
            "[A]\n=x\n]=1\n\tX =1",
            "[]\nA=1\n[A\n]\nX=1",
            "[A]\n#c\n;d\nX=1 \\\nno assignment\\\nnor this\nY=2\\",
        ] {
            assert_eq!(sections("p", text), Ok(()), "{text:?}");
        }
        for (text, want) in [
            ("[A]x\nB=c", "garbage"),
            ("[A] x", "garbage"),
            ("[A]\n[B]C=1", "garbage"),
            ("[A]\n B", "neither"),
            ("[A]\nX\n", "neither"),
            ("[A]\nX=1\\ \ny\n", "neither"),
            ("[A]\nX=1\n[", "end of section"),
            ("[Service", "end of section"),
        ] {
            let error = sections("p", text).unwrap_err().to_string();
            assert!(error.contains("invalid unit content: ") && error.contains(want), "{error}");
        }
    }
}
