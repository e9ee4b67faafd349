//! User data: the script that downloads nodeup and starts it with its document, and the user's parts.

use std::io::Write as _;

use api_meta::Tree as _;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use flate2::{Compression, GzBuilder};
use kops_api::Object;
use serde_json::Value;

use crate::{
    boot_config, cluster::Cluster as _, error::Error, files, node_config, node_inputs::NodeInputs,
    pods,
};

const BOUNDARY: &str = "MIMEBOUNDARY";
const SCRIPT: &str = include_str!("user_data.sh");

/// Returns a group's user data, which the cloud limits to some bytes. Bastions have none, unless the user adds parts.
pub(super) fn of_group(
    cluster: &Object,
    group: &Object,
    inputs: &NodeInputs,
    limit: usize,
) -> Result<String, Error> {
    let parts = group.spec.items("additionalUserData");
    let bastion = group.spec.text("role") == "Bastion";
    let data = match (bastion, parts.is_empty()) {
        (true, true) => return Ok(String::new()),
        (true, false) => multipart(None, parts)?,
        (false, true) => script(cluster, group, inputs)?,
        (false, false) => multipart(Some(&script(cluster, group, inputs)?), parts)?,
    };
    if data.len() > limit {
        let reason = format!(
            "has {} bytes of user data, more than the limit of {} on {}: set compressUserData, or download parts of \
             additionalUserData instead",
            data.len(),
            limit,
            cluster.cloud().word()
        );
        return Err(Error::value("instance group", group.name(), reason));
    }
    Ok(data)
}

/// Returns the script of a group that is not a bastion's.
pub(super) fn script(
    cluster: &Object,
    group: &Object,
    inputs: &NodeInputs,
) -> Result<String, Error> {
    let config = node_config(cluster, group, inputs)?;
    let document = boot_config(cluster, group, inputs, &config);
    let mut lines = Vec::new();
    for arch in files::ARCHITECTURES {
        let nodeup = files::kops_program(cluster, "nodeup", &inputs.kops, &inputs.hashes, arch)?;
        let (hash, urls) = nodeup.split_once('@').unwrap_or_default();
        let arch = arch.to_uppercase();
        lines.push(format!("NODEUP_URL_{arch}={}", quoted(urls)));
        lines.push(format!("NODEUP_HASH_{arch}={}", quoted(hash)));
    }
    for variable in pods::environment(cluster) {
        let (name, value) = (variable.text("name"), quoted(variable.text("value")));
        lines.push(format!("export {name}={value}"));
        // Services read /etc/environment.
        if name.to_lowercase().ends_with("_proxy") {
            lines.push(format!("echo {name}={value} >> /etc/environment"));
        }
    }
    let document = if group.spec.flag("compressUserData") {
        format!("echo {} | base64 -d | gzip -d > conf/kube_env.yaml", packed(&document)?)
    } else {
        format!("cat > conf/kube_env.yaml << '__EOF_KUBE_ENV'\n{document}\n__EOF_KUBE_ENV")
    };
    // A line that ends the document early would make the shell run the rest as root.
    if document.matches("\n__EOF_KUBE_ENV").count() > 1 {
        return Err(Error::value(
            "instance group",
            group.name(),
            "has __EOF_KUBE_ENV in its document",
        ));
    }
    Ok(SCRIPT.replace("@VARIABLES@", &lines.join("\n")).replace("@DOCUMENT@", &document))
}

/// Quotes a word for the shell, if needed.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || ":/._,-@%+=".contains(c);
    if text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

fn packed(text: &str) -> Result<String, Error> {
    let failed =
        |e: std::io::Error| Error::value("user data", "", format!("cannot be compressed: {e}"));
    let mut packer = GzBuilder::new().write(Vec::new(), Compression::best());
    packer.write_all(text.as_bytes()).map_err(failed)?;
    Ok(STANDARD.encode(packer.finish().map_err(failed)?))
}

/// Returns several parts in the multipart format of cloud-init. The format is upstream's, because any change replaces
/// machines.
fn multipart(script: Option<&str>, parts: &[Value]) -> Result<String, Error> {
    let mut out = format!(
        "Content-Type: multipart/mixed; boundary=\"{BOUNDARY}\"\r\nMIME-Version: 1.0\r\n\r\n"
    );
    let own = script.map(|script| ("nodeup.sh", "text/x-shellscript", script));
    let additional =
        parts.iter().map(|one| (one.text("name"), one.text("type"), one.text("content")));
    for (number, (name, kind, content)) in own.into_iter().chain(additional).enumerate() {
        let breaks = |text: &str| text.chars().any(|c| c.is_control() || c == '"');
        if breaks(name) || breaks(kind) || content.contains(&format!("--{BOUNDARY}")) {
            let reason = "would end its part early: a name or type contains a quote or a line break, or the content \
                          has the boundary";
            return Err(Error::value("spec.additionalUserData[]", name, reason));
        }
        let start = if number == 0 { "" } else { "\r\n" };
        out.push_str(&format!(
            "{start}--{BOUNDARY}\r\nContent-Disposition: attachment; filename=\"{name}\"\r\n\
             Content-Transfer-Encoding: 7bit\r\nContent-Type: {kind}\r\nMime-Version: 1.0\r\n\r\n{content}"
        ));
    }
    out.push_str(&format!("\r\n--{BOUNDARY}--\r\n"));
    Ok(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rejects_parts_that_break_the_multipart_format() {
        let part = |name: &str, content: &str| json!({"name": name, "type": "text/x-shellscript", "content": content});
        let both = multipart(Some("#!/bin/sh\n"), &[part("a.sh", "echo\n")]).unwrap();
        assert_eq!(both.matches("--MIMEBOUNDARY").count(), 3, "{both}");
        for hostile in
            [part("a\r\nX: y", ""), part("a\"; b", ""), part("a", "\r\n--MIMEBOUNDARY--")]
        {
            assert!(multipart(None, &[hostile]).is_err());
        }
        assert_eq!(quoted("a b'c; $(id)"), r"'a b'\''c; $(id)'");
    }
}
