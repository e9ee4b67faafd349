//! Matches images against patterns such as `*.registry.example:5000/team`.

/// Returns the repository of an image, without tag and digest, and with the registry that stands for none.
pub(super) fn repository(image: &str) -> String {
    let image = image.split('@').next().unwrap_or(image);
    let (path, name) = image.rsplit_once('/').map_or(("", image), |(path, name)| (path, name));
    let name = name.split(':').next().unwrap_or(name);
    let repository = if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
    match repository.split_once('/') {
        None => format!("docker.io/library/{repository}"),
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => repository,
        Some(_) => format!("docker.io/{repository}"),
    }
}

/// Returns the registry of a repository.
pub(super) fn registry(repository: &str) -> &str {
    repository.split('/').next().unwrap_or(repository)
}

/// A pattern's or a repository's parts.
struct Parts<'a> {
    host: &'a str,
    port: &'a str,
    path: &'a str,
}

impl<'a> Parts<'a> {
    fn of(text: &'a str) -> Self {
        let text = text.strip_prefix("https://").or(text.strip_prefix("http://")).unwrap_or(text);
        let (authority, path) = match text.find('/') {
            Some(at) => text.split_at(at),
            None => (text, ""),
        };
        // An IPv6 address is in brackets and contains colons.
        let name_end = authority.rfind(']').map_or(0, |end| end + 1);
        let port = authority[name_end..].find(':').map(|at| name_end + at);
        match port {
            Some(at) => Self { host: &authority[..at], port: &authority[at + 1..], path },
            None => Self { host: authority, port: "", path },
        }
    }
}

/// Reports whether a pattern matches a repository: the same number of domain parts, each of which may contain `*`, the
/// same port, and a path that begins with the pattern's.
pub(super) fn matches(pattern: &str, repository: &str) -> bool {
    let (pattern, target) = (Parts::of(pattern), Parts::of(repository));
    let (globs, parts) = (pattern.host.split('.'), target.host.split('.'));
    pattern.port == target.port
        && globs.clone().count() == parts.clone().count()
        && globs.zip(parts).all(|(pattern, part)| glob(pattern.as_bytes(), part.as_bytes()))
        && target.path.starts_with(pattern.path)
}

/// Reports whether a text matches a pattern in which `*` stands for any text. Takes quadratic time at most.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // The last star, and the end of the text that it stands for.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p, t));
            p += 1;
        } else if pattern.get(p) == Some(&text[t]) {
            (p, t) = (p + 1, t + 1);
        } else if let Some((at, end)) = star {
            star = Some((at, end + 1));
            (p, t) = (at + 1, end + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_repository_with_its_registry() {
        for (image, expected) in [
            ("app", "docker.io/library/app"),
            ("team/app:1", "docker.io/team/app"),
            ("host:5000/app", "host:5000/app"),
            ("localhost/app:2", "localhost/app"),
            ("registry.example/a/b:1@sha256:00", "registry.example/a/b"),
        ] {
            assert_eq!(repository(image), expected, "{image}");
        }
        assert_eq!(registry("host:5000/a/b"), "host:5000");
    }

    #[test]
    fn matches_domain_parts_port_and_path_as_upstream() {
        for (pattern, image, expected) in [
            ("*.azurecr.io", "team.azurecr.io/app", true),
            ("*.azurecr.io", "a.b.azurecr.io/app", false),
            ("*.io", "app.k8s.io/x", false),
            ("*.*.registry.io", "a.b.registry.io/x", true),
            ("app*.k8s.io", "app5.k8s.io/x", true),
            ("app*.k8s.io", "ap.k8s.io/x", false),
            ("k8s.*", "k8s.io/x", true),
            ("registry.io:8080/path", "registry.io:8080/path/app", true),
            ("registry.io:8080/path", "registry.io/path/app", false),
            ("registry.io", "registry.io:8080/app", false),
            ("registry.io/team", "registry.io/other/app", false),
            ("https://registry.io", "registry.io/app", true),
            ("[::1]:5000", "[::1]:5000/app", true),
            ("", "registry.io/app", false),
        ] {
            assert_eq!(matches(pattern, image), expected, "{pattern} {image}");
        }
        // A hostile pattern takes quadratic time only.
        assert!(!matches(&"*a".repeat(2_000), &"a".repeat(1_999)));
    }
}
