//! Checks a Corefile on another machine than the server's, before an upgrade replaces the server.

use crate::directive::{CorefileError, Directive};

/// The number of errors that are returned.
const MAX_ERRORS: usize = 20;
/// The number of wrong lines, also of those that are not reported.
const MAX_ROUNDS: usize = 200;
/// The port of server blocks without one.
const PORT: u16 = 53;

/// Returns the first errors of a Corefile in the order in which they are found, each with its line.
///
/// No file is read, because files of the server's Pod are not here: imports of files are left out, and files count as
/// readable. The plugin `file` is not checked. The values of environment variables are unknown, so lines that use one
/// have no errors.
pub fn check(text: &str) -> Vec<CorefileError> {
    let mut lines = match super::import::expand(text, None, &|_| None) {
        Ok(lines) => lines,
        Err(error) => return vec![error],
    };
    for block in &mut lines {
        block.body.retain(|plugin| !matches!(plugin.name(), "root" | "file"));
        block.body.iter_mut().for_each(replace_files);
    }
    let texts: Vec<&str> = text.lines().collect();
    let has_variable = |line: usize| {
        let text = line.checked_sub(1).and_then(|index| texts.get(index));
        text.is_some_and(|text| text.contains("{$") || text.contains("{%"))
    };
    let mut errors = Vec::new();
    for _ in 0..MAX_ROUNDS {
        let Err(error) = super::plugins::build(&lines, PORT) else { break };
        let is_removed = remove(&mut lines, error.line);
        if !has_variable(error.line) {
            errors.push(error);
        }
        // Without server blocks, the next error would be about those that were removed.
        if !is_removed || lines.is_empty() || errors.len() == MAX_ERRORS {
            break;
        }
    }
    errors
}

/// Replaces the arguments of a plugin that the parser would open as files, also by relative paths.
fn replace_files(plugin: &mut Directive) {
    match plugin.name() {
        "autopath" => {
            if let [_, .., source] = plugin.words.as_mut_slice()
                && !source.starts_with('@')
            {
                "@kubernetes".clone_into(source);
            }
        }
        "forward" => {
            plugin.body.retain(|option| option.name() != "tls");
            for server in plugin.words.iter_mut().skip(2) {
                let has_protocol = server.contains("://");
                // Certificates of servers over TLS are verified with a file of authorities.
                if server.starts_with("tls://") || server.contains('/') && !has_protocol {
                    "127.0.0.1".clone_into(server);
                } else if !has_protocol {
                    // With the default protocol, a word that is no address is an error and not a file.
                    server.insert_str(0, "dns://");
                }
            }
        }
        _ => {}
    }
}

/// Removes the directives that begin in a line, with their options. Returns `true` if there is one.
fn remove(directives: &mut Vec<Directive>, line: usize) -> bool {
    let before = directives.len();
    directives.retain(|directive| directive.line != line);
    let mut is_removed = directives.len() < before;
    for directive in directives {
        is_removed |= remove(&mut directive.body, line);
    }
    is_removed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str) -> Vec<String> {
        check(text).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn reports_every_wrong_line_and_reads_no_file() {
        let text = "\
.:53 {
    errors
    k8s_external example.com
    kubernetes cluster.local {
        pods insecure
        multicluster other.local
        zonal
    }
    hosts /etc/coredns/names {
        fallthrough
    }
    file /dev/zero example.org
    import /etc/coredns/custom/*.override
    import /proc/self/mem
    forward . /nonexistent/resolv.conf {
        tls /nonexistent/certificate /nonexistent/key
        max_concurrent many
    }
    cache {$TTL}
}
tls://example.com {
    whoami
}
";
        let found = messages(text);
        for (line, part) in [(3, "k8s_external"), (6, "multicluster"), (7, "zonal"), (17, "many")] {
            let expected = format!("Corefile line {line}: ");
            let of_line = found.iter().find(|error| error.starts_with(&expected));
            assert!(of_line.is_some_and(|error| error.contains(part)), "{line}: {found:#?}");
        }
        assert!(found.iter().any(|error| error.starts_with("Corefile line 21: ")), "{found:#?}");
        assert_eq!(found.len(), 5, "{found:#?}");
    }

    #[test]
    fn accepts_right_files_and_bounds_hostile_ones() {
        for text in [
            ".:53 {\n whoami\n}\n",
            "(shared) {\n log\n}\n.:53 {\n import shared\n}\n",
            ".:53 {\n forward . tls://9.9.9.9 {\n tls_servername dns.quad9.net\n }\n}\n",
            ".:53 {\n forward . {$UPSTREAM}\n}\n",
            ". {\n autopath /etc/resolv.conf\n kubernetes cluster.local\n}\n",
            ". {\n autopath ../nonexistent\n kubernetes cluster.local\n forward . ../nonexistent\n}\n",
            ". {\n forward . 192.0.2.1 192.0.2.1:53 dns://192.0.2.1 fd00::1 [fd00::1]:53\n}\n",
        ] {
            assert_eq!(messages(text), [""; 0], "{text}");
        }
        for (text, reason) in [
            ("", "there is no server block"),
            (".:53 {\n", "never closed"),
            ("}\n", "closes a block"),
            (". {\n \"", "quotation mark"),
            (". {\n forward . Cargo.toml\n}\n", "by IP address"),
            ("(a) {\n import a\n}\n. {\n import a\n}\n", "too many imports"),
        ] {
            let found = messages(text);
            assert!(found.len() == 1 && found[0].contains(reason), "{text}: {found:?}");
        }
        let many = format!(".:53 {{\n{}}}\n", "nonsense\n".repeat(100_000));
        assert!(messages(&many).len() <= MAX_ERRORS);
        let variables = format!(".:53 {{\n{}}}\n", "nonsense {$A}\n".repeat(10_000));
        assert_eq!(messages(&variables), [""; 0]);
    }
}
