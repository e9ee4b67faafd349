//! Validates a config beyond its structure. Errors are limited to configs that cannot be carried out as written.

#[cfg(test)]
mod tests;
pub(crate) mod versions;

use std::collections::BTreeSet;

use crate::{
    clevis,
    data::decode_url,
    error::ConfigError,
    gpt::Guid,
    paths,
    spec::{
        Clevis, Config, Disk, Filesystem, Header, Luks, Owner, Partition, Raid, Resource, Storage,
        Unit,
    },
};

type Outcome = Result<(), ConfigError>;

pub(crate) const DUPLICATE: &str = "duplicate entry defined";

fn fail(path: impl Into<String>, reason: impl Into<String>) -> Outcome {
    Err(ConfigError::invalid(path, reason))
}

/// Fails unless a requirement is met.
fn ensure(is_met: bool, path: impl Into<String>, reason: &str) -> Outcome {
    if is_met { Ok(()) } else { fail(path, reason) }
}

pub(crate) fn validate(config: &Config) -> Outcome {
    let references = &config.ignition.config;
    let required = |path: &str, resource: &Resource| validate_resource(path, resource, true);
    each("ignition.config.merge", &references.merge, required)?;
    validate_resource("ignition.config.replace", &references.replace, false)?;
    let authorities = &config.ignition.security.tls.certificate_authorities;
    each("ignition.security.tls.certificateAuthorities", authorities, required)?;
    validate_lists(config)?;
    versions::check(config)?;
    let proxy = &config.ignition.proxy;
    for (name, url) in [("httpProxy", &proxy.http_proxy), ("httpsProxy", &proxy.https_proxy)] {
        let is_http = |url: &str| {
            let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
            ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known))
        };
        let is_valid = url.as_deref().is_none_or(is_http);
        ensure(is_valid, format!("ignition.proxy.{name}"), "proxies must be http(s)")?;
    }
    let storage = &config.storage;
    each("storage.disks", &storage.disks, validate_disk)?;
    each("storage.raid", &storage.raid, validate_raid)?;
    each("storage.luks", &storage.luks, validate_luks)?;
    each("storage.filesystems", &storage.filesystems, validate_filesystem)?;
    validate_nodes(config)?;
    each("systemd.units", &config.systemd.units, validate_unit)
}

fn each<T>(path: &str, items: &[T], check: impl Fn(&str, &T) -> Outcome) -> Outcome {
    items.iter().enumerate().try_for_each(|(i, item)| check(&format!("{path}.{i}"), item))
}

/// Rejects duplicates in a list. Option lists may have them, because programs define their meaning.
fn validate_distinct<'k>(
    path: impl Into<String>,
    keys: impl IntoIterator<Item = &'k str>,
) -> Outcome {
    let (path, mut distinct) = (path.into(), BTreeSet::new());
    match keys.into_iter().enumerate().find(|(_, key)| !distinct.insert(*key)) {
        Some((i, _)) => fail(format!("{path}.{i}"), DUPLICATE),
        None => Ok(()),
    }
}

/// Checks nested lists and those of the head for duplicates. Lists of named items are checked in `config`.
fn validate_lists(config: &Config) -> Outcome {
    let texts =
        |path: &str, list: &[String]| validate_distinct(path, list.iter().map(String::as_str));
    let sources = |path: &str, list: &[Resource]| {
        validate_distinct(path, list.iter().filter_map(|resource| resource.source.as_deref()))
    };
    let (head, arguments) = (&config.ignition, &config.kernel_arguments);
    sources("ignition.config.merge", &head.config.merge)?;
    let authorities = &head.security.tls.certificate_authorities;
    sources("ignition.security.tls.certificateAuthorities", authorities)?;
    texts("ignition.proxy.noProxy", &head.proxy.no_proxy)?;
    texts("kernelArguments.shouldExist", &arguments.should_exist)?;
    texts("kernelArguments.shouldNotExist", &arguments.should_not_exist)?;
    let absent = arguments.should_not_exist.iter();
    if let Some((i, _)) = absent.enumerate().find(|(_, word)| arguments.should_exist.contains(word))
    {
        return fail(format!("kernelArguments.shouldNotExist.{i}"), DUPLICATE);
    }
    each("passwd.users", &config.passwd.users, |path, user| {
        texts(&format!("{path}.groups"), &user.groups)?;
        texts(&format!("{path}.sshAuthorizedKeys"), &user.ssh_authorized_keys)
    })?;
    each("storage.raid", &config.storage.raid, |path, raid| {
        texts(&format!("{path}.devices"), &raid.devices)
    })?;
    each("storage.luks", &config.storage.luks, |path, luks| {
        let servers = luks.clevis.tang.iter().map(|tang| tang.url.as_str());
        validate_distinct(format!("{path}.clevis.tang"), servers)
    })?;
    each("systemd.units", &config.systemd.units, |path, unit| {
        let dropins = unit.dropins.iter().map(|dropin| dropin.name.as_str());
        validate_distinct(format!("{path}.dropins"), dropins)
    })
}

fn validate_resource(path: &str, resource: &Resource, required: bool) -> Outcome {
    let headers = resource.http_headers.iter().map(|header| header.name.as_str());
    validate_distinct(format!("{path}.httpHeaders"), headers)?;
    each(&format!("{path}.httpHeaders"), &resource.http_headers, |path, header| match header {
        Header { name, .. } if name.is_empty() => {
            fail(format!("{path}.name"), "HTTP header name can't be empty")
        }
        Header { value: Some(value), .. } if value.is_empty() => {
            fail(format!("{path}.value"), "unable to parse HTTP header")
        }
        _ => Ok(()),
    })?;
    ensure(
        resource.source.is_some() || resource.verification.hash.is_none(),
        format!("{path}.verification.hash"),
        "source must be specified if verification is specified",
    )?;
    let has_headers = !resource.http_headers.is_empty();
    let Some(source) = resource.url() else {
        ensure(!has_headers, format!("{path}.httpHeaders"), "unable to parse url")?;
        return ensure(!required, path, "source is required");
    };
    let scheme = source.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
    let http = matches!(scheme.as_deref(), Some("http" | "https"));
    match scheme.as_deref() {
        Some("http" | "https" | "tftp" | "gs") => {}
        Some("data") => {
            if let Err(error) = decode_url(source) {
                return fail(format!("{path}.source"), error.to_string());
            }
        }
        Some("s3" | "arn") => validate_bucket(&format!("{path}.source"), source)?,
        _ => return fail(format!("{path}.source"), "invalid url scheme"),
    }
    let reason = "cannot use HTTP headers with this source scheme";
    ensure(http || !has_headers, format!("{path}.httpHeaders"), reason)?;
    let is_supported = matches!(resource.compression.as_deref(), None | Some("" | "gzip"));
    ensure(is_supported, format!("{path}.compression"), "invalid compression method")?;
    let Some(hash) = resource.verification.hash.as_deref() else { return Ok(()) };
    let place = format!("{path}.verification.hash");
    let (length, sum) = match hash.split_once('-') {
        None => return fail(place, "malformed hash specifier"),
        Some(("sha512", sum)) => (128, sum),
        Some(("sha256", sum)) => (64, sum),
        Some(_) => return fail(place, "unrecognized hash function"),
    };
    let is_sum = sum.len() == length && sum.bytes().all(|b| b.is_ascii_hexdigit());
    ensure(is_sum, place, "incorrect size for hash sum")
}

/// Validates an object in S3, given by URL or ARN.
fn validate_bucket(path: &str, source: &str) -> Outcome {
    let (place, query) = source.split_once('?').unwrap_or((source, ""));
    let has_empty_version =
        query.split('&').any(|part| ["versionId", "versionId="].contains(&part));
    ensure(!has_empty_version, path, "invalid S3 object VersionId")?;
    let Some(rest) = place.strip_prefix("arn:") else { return Ok(()) };
    let parts: Vec<_> = rest.splitn(5, ':').collect();
    let [_, "s3", _, _, resource] = parts[..] else { return fail(path, "invalid S3 ARN format") };
    let least = if resource.starts_with("accesspoint/") { 2 } else { 1 };
    ensure(resource.matches('/').count() >= least, path, "invalid S3 ARN format")
}

fn validate_disk(path: &str, disk: &Disk) -> Outcome {
    ensure(!disk.device.is_empty(), format!("{path}.device"), "disk device is required")?;
    validate_absolute(&format!("{path}.device"), &disk.device)?;
    let mut numbers = BTreeSet::new();
    let mut labels = BTreeSet::new();
    for (i, partition) in disk.partitions.iter().enumerate() {
        let path = format!("{path}.partitions.{i}");
        validate_partition(&path, partition)?;
        let is_new = partition.number == 0 || numbers.insert(partition.number);
        ensure(is_new, path.as_str(), "partition numbers collide")?;
        let label = partition.label.as_deref().filter(|label| !label.is_empty());
        let is_new = label.is_none_or(|label| labels.insert(label));
        ensure(is_new, path, "cannot use the same partition label twice")?;
    }
    // Only explicit positions can be compared; the plan checks the others.
    let place = |(i, p): (usize, &Partition)| {
        Some((p.start_mib.filter(|s| *s > 0)?, p.size_mib.filter(|s| *s > 0)?, i))
    };
    let mut places: Vec<_> = disk.partitions.iter().enumerate().filter_map(place).collect();
    places.sort_unstable();
    let overlaps = |pair: &&[(u64, u64, usize)]| pair[0].0.saturating_add(pair[0].1) > pair[1].0;
    match places.windows(2).find(overlaps) {
        Some(pair) => fail(format!("{path}.partitions.{}", pair[1].2), "partitions overlap"),
        None => Ok(()),
    }
}

fn validate_partition(path: &str, partition: &Partition) -> Outcome {
    let set = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    let is_identified = partition.number != 0 || set(&partition.label);
    ensure(is_identified, path, "a partition number >= 1 or a label must be specified")?;
    let is_described =
        [&partition.label, &partition.type_guid, &partition.guid].into_iter().any(set)
            || partition.start_mib.is_some()
            || partition.size_mib.is_some();
    let reason = "shouldExist specified false with other options also specified";
    ensure(partition.should_exist != Some(false) || !is_described, path, reason)?;
    if let Some(label) = &partition.label {
        let path = format!("{path}.label");
        let is_short = label.encode_utf16().count() <= 36;
        ensure(is_short, path.as_str(), "partition labels may not exceed 36 characters")?;
        // sgdisk cannot write a colon, so such labels are rejected, as upstream does.
        let reason = "partition label will be truncated to text before the colon";
        ensure(!label.contains(':'), path, reason)?;
    }
    for (name, text) in [("guid", &partition.guid), ("typeGuid", &partition.type_guid)] {
        let is_valid = |text: &str| text.is_empty() || Guid::parse(text).is_some();
        let reason = "doesn't match the form \"01234567-89AB-CDEF-EDCB-A98765432101\"";
        ensure(text.as_deref().is_none_or(is_valid), format!("{path}.{name}"), reason)?;
    }
    Ok(())
}

fn validate_raid(path: &str, raid: &Raid) -> Outcome {
    let spares = match raid.level.as_deref() {
        Some("linear" | "raid0" | "0" | "stripe") => false,
        Some(
            "raid1" | "1" | "mirror" | "raid4" | "4" | "raid5" | "5" | "raid6" | "6" | "raid10"
            | "10",
        ) => true,
        None | Some("") => return fail(format!("{path}.level"), "raid level is required"),
        Some(_) => return fail(format!("{path}.level"), "unrecognized raid level"),
    };
    let reason = "spares unsupported for linear and raid0 arrays";
    ensure(
        spares || raid.spares.is_none_or(|spares| spares == 0),
        format!("{path}.level"),
        reason,
    )?;
    ensure(!raid.devices.is_empty(), format!("{path}.devices"), "raid devices required")?;
    each(&format!("{path}.devices"), &raid.devices, |path, device| validate_absolute(path, device))
}

fn validate_luks(path: &str, luks: &Luks) -> Outcome {
    let reason = "device names cannot contain slashes";
    ensure(!luks.name.contains('/'), format!("{path}.name"), reason)?;
    match luks.device.as_deref() {
        None | Some("") => return fail(format!("{path}.device"), "disk device is required"),
        Some(device) => validate_absolute(&format!("{path}.device"), device)?,
    }
    let is_short = luks.label.as_deref().is_none_or(|label| label.len() <= 47);
    let reason = "luks device labels cannot be longer than 47 characters";
    ensure(is_short, format!("{path}.label"), reason)?;
    validate_resource(&format!("{path}.keyFile"), &luks.key_file, false)?;
    if luks.cex.enabled == Some(true) {
        let path = format!("{path}.cex");
        let has_clevis = luks.clevis != Clevis::default();
        ensure(!has_clevis, path.as_str(), "cannot use cex with clevis")?;
        ensure(luks.key_file.url().is_none(), path, "cannot use key file with cex")?;
    }
    clevis::validate(&format!("{path}.clevis"), &luks.clevis)
}

fn validate_filesystem(path: &str, filesystem: &Filesystem) -> Outcome {
    ensure(!filesystem.device.is_empty(), format!("{path}.device"), "path not specified")?;
    validate_absolute(&format!("{path}.device"), &filesystem.device)?;
    let Some(format) = filesystem.format.as_deref().filter(|format| !format.is_empty()) else {
        let used =
            [&filesystem.path, &filesystem.label, &filesystem.uuid].iter().any(|t| t.is_some())
                || filesystem.wipe_filesystem == Some(true)
                || !filesystem.options.is_empty()
                || !filesystem.mount_options.is_empty();
        let reason = "format cannot be empty when path, label, uuid, wipeFilesystem, options, or mountOptions is \
                      specified";
        return ensure(!used, format!("{path}.format"), reason);
    };
    let longest = match format {
        "ext4" => 16,
        "btrfs" => 256,
        "xfs" => 12,
        "vfat" => 11,
        "swap" => 15,
        "none" => 0,
        _ => return fail(format!("{path}.format"), "invalid filesystem format"),
    };
    let is_short = filesystem.label.as_deref().is_none_or(|label| label.len() <= longest);
    let reason =
        format!("filesystem labels cannot be longer than {longest} characters when using {format}");
    ensure(is_short, format!("{path}.label"), &reason)?;
    match filesystem.path.as_deref() {
        None | Some("") => Ok(()),
        Some(mount) => validate_absolute(&format!("{path}.path"), mount),
    }
}

fn validate_nodes(config: &Config) -> Outcome {
    let storage = &config.storage;
    let owners = |path: &str, user: &Owner, group: &Owner| {
        for (name, owner) in [("user", user), ("group", group)] {
            let is_named = owner.name.as_deref().is_some_and(|name| !name.is_empty());
            let is_ambiguous = owner.id.is_some() && is_named;
            ensure(!is_ambiguous, format!("{path}.{name}"), "cannot set both id and name")?;
        }
        Ok(())
    };
    let mode = |path: &str, mode: Option<u32>| {
        let is_legal = mode.is_none_or(|mode| mode <= 0o7777);
        ensure(is_legal, format!("{path}.mode"), "illegal file mode")
    };
    each("storage.files", &storage.files, |path, file| {
        owners(path, &file.user, &file.group)?;
        mode(path, file.mode)?;
        let is_valid = file.overwrite != Some(true) || file.contents.source.is_some();
        let reason = "overwrite must be false if source is unspecified";
        ensure(is_valid, format!("{path}.overwrite"), reason)?;
        validate_resource(&format!("{path}.contents"), &file.contents, false)?;
        each(&format!("{path}.append"), &file.append, |path, part| {
            validate_resource(path, part, true)
        })
    })?;
    each("storage.directories", &storage.directories, |path, directory| {
        owners(path, &directory.user, &directory.group)?;
        mode(path, directory.mode)
    })?;
    each("storage.links", &storage.links, |path, link| {
        owners(path, &link.user, &link.group)?;
        match link.target.as_deref() {
            None | Some("") => fail(format!("{path}.target"), "link target is required"),
            Some(target) => {
                let is_directory = storage.directories.iter().any(|d| d.path == target);
                let is_valid = link.hard != Some(true) || !is_directory;
                ensure(is_valid, path, "hard link target is a directory")
            }
        }
    })?;
    validate_mount_units(config)?;
    validate_parents(storage)
}

/// Rejects nodes below a node that is not a directory.
fn validate_parents(storage: &Storage) -> Outcome {
    let below = |path: &str, parent: &str| {
        path.strip_prefix(parent.trim_end_matches('/'))
            .is_some_and(|rest| rest.starts_with('/') && rest.len() > 1)
    };
    let files = storage.files.iter().map(|file| &file.path).enumerate();
    let directories = storage.directories.iter().map(|directory| &directory.path).enumerate();
    let links = storage.links.iter().map(|link| &link.path).enumerate();
    let all: Vec<(&str, usize, &String)> = (directories.map(|(i, p)| ("directories", i, p)))
        .chain(files.map(|(i, p)| ("files", i, p)))
        .chain(links.map(|(i, p)| ("links", i, p)))
        .collect();
    for (kind, _, parent) in all.iter().filter(|(kind, ..)| *kind != "directories") {
        let Some((other, i, path)) = all.iter().find(|(_, _, path)| below(path, parent)) else {
            continue;
        };
        let place = format!("storage.{other}.{i}");
        let name = match *other {
            "directories" => "directory",
            other => other.trim_end_matches('s'),
        };
        return match *kind {
            "links" => fail(place, format!("{name} path includes link in config")),
            kind => {
                fail(place, format!("{path} lies beneath {parent}, which is in storage.{kind}"))
            }
        };
    }
    Ok(())
}

/// Rejects nodes at paths that a unit writes.
fn validate_mount_units(config: &Config) -> Outcome {
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
    let free = |path: &str, place: &str| {
        let reason = "path conflicts with systemd unit or dropin";
        ensure(!written.contains(place), format!("{path}.path"), reason)
    };
    each("storage.files", files, |path, file| free(path, &file.path))?;
    each("storage.directories", directories, |path, directory| free(path, &directory.path))?;
    each("storage.links", links, |path, link| free(path, &link.path))
}

const UNIT_KINDS: &str =
    "service socket device mount automount swap target path timer snapshot slice scope";

fn validate_unit(path: &str, unit: &Unit) -> Outcome {
    let kind = unit.name.rsplit_once('.').map_or("", |(_, kind)| kind);
    let is_valid = UNIT_KINDS.split(' ').any(|known| known == kind) && !unit.name.contains('/');
    ensure(is_valid, format!("{path}.name"), "invalid systemd unit extension")?;
    if let Some(contents) = &unit.contents {
        validate_sections(&format!("{path}.contents"), contents)?;
    }
    each(&format!("{path}.dropins"), &unit.dropins, |path, dropin| {
        let is_valid = dropin.name.ends_with(".conf") && !dropin.name.contains('/');
        ensure(is_valid, format!("{path}.name"), "invalid systemd drop-in extension")?;
        let contents = dropin.contents.as_deref().unwrap_or_default();
        validate_sections(&format!("{path}.contents"), contents)
    })
}

/// Parses a unit as sections of assignments. As in upstream's parser, text before the first section is ignored.
fn validate_sections(path: &str, text: &str) -> Outcome {
    let invalid = |what: String| fail(path, format!("invalid unit content: {what}"));
    let mut rest = first_section(text);
    while !rest.is_empty() {
        let (line, more) = rest.split_once('\n').unwrap_or((rest, ""));
        if let Some(name) = rest.strip_prefix('[') {
            let Some((_, after)) = name.split_once(']') else {
                return invalid("unable to find end of section".into());
            };
            let (behind, more) = after.split_once('\n').unwrap_or((after, ""));
            if !behind.trim().is_empty() {
                return invalid(format!("found garbage after section name {behind:?}"));
            }
            rest = more.trim_start();
            continue;
        }
        rest = more;
        if !line.starts_with(['#', ';']) && !line.contains('=') {
            return invalid(format!("{line:?} is neither a section nor an assignment"));
        }
        let mut line = line;
        while line.ends_with('\\') {
            (line, rest) = rest.split_once('\n').unwrap_or((rest, ""));
        }
        rest = rest.trim_start();
    }
    Ok(())
}

/// Returns the text from the first bracket outside of comments.
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

fn validate_absolute(path: &str, text: &str) -> Outcome {
    paths::check(text).or_else(|reason| fail(path, reason))
}
