//! Warns about overlapping file paths in one volume: two keys at the same path, or a path below another file.

use std::{collections::HashMap, ops::Range};

use api_meta::{Tree as _, Warnings};
use serde_json::Value;

/// The source of a file: the words for its kind, and its name. Both are empty for volumes with one source.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Source<'a> {
    kind: &'static str,
    name: Option<&'a str>,
}

/// A file and its source.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct File<'a> {
    path: &'a str,
    source: Source<'a>,
}

impl File<'_> {
    fn words(&self) -> String {
        match self.source {
            Source { kind: "", .. } => format!("{:?}", self.path),
            Source { kind, name: None } => format!("{:?} ({kind})", self.path),
            Source { kind, name: Some(name) } => format!("{:?} ({kind} {name:?})", self.path),
        }
    }

    /// Reports whether this file has the other one's path or a parent of it.
    fn contains(&self, other: &File) -> bool {
        let rest = other.path.strip_prefix(self.path);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// Adds the warnings for all volumes of a Pod.
pub(super) fn of(spec: &Value, warnings: &mut Warnings) {
    for volume in spec.items("volumes") {
        for kind in ["configMap", "secret", "downwardAPI"] {
            let files: Vec<File> = files(volume.at(kind), Source::default()).collect();
            if files.len() < 2 {
                continue;
            }
            let shown = match kind {
                "configMap" => format!("ConfigMap {:?}", volume.text("configMap.name")),
                "secret" => format!("Secret {:?}", volume.text("secret.secretName")),
                _ => "DownwardAPI".to_owned(),
            };
            let overlaps = Overlaps::new(volume, &shown, files);
            overlaps.warn(0..overlaps.files.len(), warnings);
        }
        let sources = volume.items("projected.sources");
        let (mut all, mut ends) = (Vec::new(), Vec::with_capacity(sources.len()));
        for source in sources {
            add_projected_files(source, &mut all);
            ends.push(all.len());
        }
        let overlaps = Overlaps::new(volume, "Projected", all);
        let mut start = 0;
        for (source, end) in sources.iter().zip(ends) {
            if source.as_object().is_none_or(serde_json::Map::is_empty) {
                let name = volume.text("name");
                warnings.push(format!("volume {name:?} (Projected) has no sources provided"));
            }
            overlaps.warn(start..end, warnings);
            start = end;
        }
    }
}

/// The files of one volume as a tree of their paths.
struct Overlaps<'a> {
    volume: &'a Value,
    of: &'a str,
    files: Vec<File<'a>>,
    /// The nodes in path order, so that each node precedes its descendants.
    nodes: Vec<Node>,
    /// The node of each file; `None` for a file without a path.
    node_of: Vec<Option<usize>>,
    /// The previous file with the same path and source, by file.
    previous: Vec<Option<usize>>,
    /// The number of distinct files before each file.
    distinct: Vec<usize>,
}

/// The files at one path.
struct Node {
    /// The files in order of their index.
    files: Vec<usize>,
    /// The nearest ancestor with a file.
    parent: Option<usize>,
    /// The index after the last descendant.
    end: usize,
}

impl<'a> Overlaps<'a> {
    fn new(volume: &'a Value, of: &'a str, files: Vec<File<'a>>) -> Self {
        let (mut previous, mut distinct) = (Vec::new(), Vec::new());
        let mut last: HashMap<File, usize> = HashMap::new();
        for (at, file) in files.iter().enumerate() {
            distinct.push(last.len());
            previous.push(last.insert(*file, at));
        }
        let mut order: Vec<usize> =
            (0..files.len()).filter(|i| !files[*i].path.is_empty()).collect();
        order.sort_by(|a, b| files[*a].path.split('/').cmp(files[*b].path.split('/')));
        let mut nodes: Vec<Node> = Vec::new();
        let mut node_of = vec![None; files.len()];
        // The previous node and its ancestors.
        let mut open: Vec<usize> = Vec::new();
        for file in order {
            let at_top = |open: &[usize], nodes: &[Node]| {
                open.last().map(|top| &files[nodes[*top].files[0]])
            };
            while at_top(&open, &nodes).is_some_and(|top| !top.contains(&files[file])) {
                if let Some(top) = open.pop() {
                    nodes[top].end = nodes.len();
                }
            }
            match at_top(&open, &nodes) {
                Some(top) if top.path == files[file].path => {}
                _ => {
                    let (parent, at) = (open.last().copied(), nodes.len());
                    nodes.push(Node { files: Vec::new(), parent, end: 0 });
                    open.push(at);
                }
            }
            node_of[file] = open.last().copied();
            if let (Some(top), None) = (open.last(), previous[file]) {
                nodes[*top].files.push(file);
            }
        }
        let count = nodes.len();
        open.into_iter().for_each(|top| nodes[top].end = count);
        Self { volume, of, files, nodes, node_of, previous, distinct }
    }

    /// Warns about the files in a range that overlap with earlier files.
    fn warn(&self, range: Range<usize>, warnings: &mut Warnings) {
        for at in range {
            for other in self.earlier(at, warnings.room()) {
                let (new, old) = (self.files[at].words(), self.files[other].words());
                let (name, of) = (self.volume.text("name"), self.of);
                warnings
                    .push(format!("volume {name:?} ({of}): overlapping paths: {new} with {old}"));
            }
        }
    }

    /// Returns the first `room` earlier files that overlap with a file. Of files with the same path and source, it
    /// returns only the first. A repeated file is not compared again with files before its previous occurrence.
    ///
    /// A path has at most as many ancestors as slashes, so the total work is bounded by the length of all paths.
    fn earlier(&self, file: usize, room: usize) -> Vec<usize> {
        let mut found = Vec::new();
        let Some(node) = self.node_of[file].filter(|_| room > 0) else { return found };
        let before = self.previous[file];
        let is_third = before.is_some_and(|before| self.previous[before].is_some());
        if is_third && before.is_some_and(|at| self.distinct[at] == self.distinct[file]) {
            return found;
        }
        let mut add = |node: &Node| {
            let new = node.files.partition_point(|other| Some(*other) < before);
            found.extend(node.files[new..].iter().take_while(|other| **other < file).take(room));
        };
        let mut above = Some(node);
        while let Some(at) = above {
            add(&self.nodes[at]);
            above = self.nodes[at].parent;
        }
        self.nodes[node + 1..self.nodes[node].end].iter().for_each(add);
        found.sort_unstable();
        found.truncate(room);
        found
    }
}

fn file<'a>(path: &'a str, source: Source<'a>) -> File<'a> {
    File { path: path.trim_end_matches('/'), source }
}

fn files<'a>(source: &'a Value, of: Source<'a>) -> impl Iterator<Item = File<'a>> {
    source.items("items").iter().map(move |item| file(item.text("path"), of))
}

fn add_projected_files<'a>(source: &'a Value, all: &mut Vec<File<'a>>) {
    for (field, kind) in [("configMap", "ConfigMap"), ("secret", "Secret")] {
        let projected = source.at(field);
        all.extend(files(projected, Source { kind, name: Some(projected.text("name")) }));
    }
    let downward = Source { kind: "DownwardAPI", name: None };
    all.extend(files(source.at("downwardAPI"), downward));
    let bundle = match source.text("clusterTrustBundle.name") {
        "" => source.text("clusterTrustBundle.signerName"),
        name => name,
    };
    for (path, kind, name) in [
        ("serviceAccountToken.path", "ServiceAccountToken", None),
        ("clusterTrustBundle.path", "ClusterTrustBundle", Some(bundle)),
        ("podCertificate.certificateChainPath", "PodCertificate chain", None),
        ("podCertificate.keyPath", "PodCertificate key", None),
        ("podCertificate.credentialBundlePath", "PodCertificate credential bundle", None),
    ] {
        if let Some(path) = source.opt_text(path) {
            all.push(file(path, Source { kind, name }));
        }
    }
}
