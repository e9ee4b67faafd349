#!/bin/bash
# Fetches nodeup, checks it, and has it make this machine what its group is to be.
set -o errexit -o nounset -o pipefail

@VARIABLES@

# Small buffers of some kernels stall large downloads.
sysctl -w net.core.rmem_max=16777216 net.core.wmem_max=16777216 || true
sysctl -w net.ipv4.tcp_rmem='4096 87380 16777216' net.ipv4.tcp_wmem='4096 87380 16777216' || true

directory=/opt/kops
# There /opt is read-only.
if [[ -d /var/lib/toolbox ]]; then directory=/var/lib/toolbox/kops; fi
mkdir -p "${directory}/bin" "${directory}/conf"
cd "${directory}"

case "$(uname -m)" in
x86_64) urls="${NODEUP_URL_AMD64}" hash="${NODEUP_HASH_AMD64}" ;;
aarch64) urls="${NODEUP_URL_ARM64}" hash="${NODEUP_HASH_ARM64}" ;;
*) echo "no nodeup for $(uname -m)" >&2; exit 1 ;;
esac

is_whole() { [[ -f bin/nodeup ]] && echo "${hash}  bin/nodeup" | sha256sum --check --status; }

fetch() {
  if command -v curl > /dev/null; then
    curl --fail --location --connect-timeout 20 --retry 6 --retry-delay 10 --output bin/nodeup "$1"
  else
    wget --connect-timeout=20 --tries=6 --wait=10 --output-document=bin/nodeup "$1"
  fi
}

until is_whole; do
  for url in ${urls//,/ }; do
    if fetch "${url}" && is_whole; then break; fi
    rm -f bin/nodeup
  done
  is_whole || { echo "nodeup is not to be had; trying again in a minute"; sleep 60; }
done
chmod +x bin/nodeup

# Images without one share the first machine's.
/bin/systemd-machine-id-setup || true

@DOCUMENT@

cd bin
./nodeup --install-systemd-unit "--conf=${directory}/conf/kube_env.yaml" --v=8
