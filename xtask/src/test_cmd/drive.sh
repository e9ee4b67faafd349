# Runs the cases of upstream's test/cmd against the kube-apiserver and kube-controller-manager in $BIN, with the kubectl
# and etcd there. `cargo xtask test-cmd` sets BIN, KUBE_ROOT (the checkout) and OUT (a new directory).
set -o errexit -o nounset -o pipefail
cd "$KUBE_ROOT"
export PATH=$BIN:$PATH THIS_PLATFORM_BIN=$BIN KUBE_TEMP=$OUT/tmp TMPDIR=$OUT/tmp
# kubectl may have another patch version than the servers.
export KUBE_JUNIT_REPORT_DIR=$OUT/junit ALLOW_SKEW=true
mkdir -p "$TMPDIR"
for library in logging util etcd test; do
    source hack/lib/$library.sh
done

# The programs are prebuilt, and etcd is the given one.
make() { :; }
kube::util::find-binary() { echo "$BIN/$1"; }
kube::etcd::start() {
    etcd --data-dir "$OUT/etcd" --listen-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380 \
        --advertise-client-urls http://127.0.0.1:2379 >"$OUT/etcd.log" 2>&1 &
    ETCD_PID=$!
    kube::util::wait_for_url http://127.0.0.1:2379/health etcd
}
kube::etcd::cleanup() { kill -9 "$ETCD_PID"; }

source test/cmd/legacy-script.sh
SERVICE_ACCOUNT_LOOKUP=true SERVICE_ACCOUNT_KEY=$OUT/service-account.key
openssl genrsa -out "$SERVICE_ACCOUNT_KEY" 2048 2>/dev/null
# The functions that start the servers, with the output of these in a file of its own.
sed -n '/^function run_kube_apiserver/,/^# Run it if/p' hack/make-rules/test-cmd.sh |
    sed 's/1>&2 &$/>>"$OUT\/servers.log" 2>\&1 \&/' >"$OUT/servers.sh"
source "$OUT/servers.sh"

setup
run_kube_apiserver
run_kube_controller_manager
# kubectl validates objects by this document, which a new API server does not have at once.
kube::util::wait_for_url_with_bearer_token "https://127.0.0.1:$SECURE_API_PORT/openapi/v2" admin-token openapi 1 120
create_node
export SUPPORTED_RESOURCES=("*")
runTests
