package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/examples/internal/rig"
	"github.com/lbprim/lbprim/internal/testenv"
)

// TestREADME does what README.md has a new user do, line by line, in a namespace and a /run of its own.
func TestREADME(t *testing.T) {
	testenv.NeedServers(t, "bash", "python3", "curl", "hostname", "unshare")
	h := newHosts(t)
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, part, ok := strings.Cut(string(text), "## Two local web servers")
	require.True(t, ok)
	part, _, ok = strings.Cut(part, "## What next")
	require.True(t, ok)
	var script strings.Builder
	for _, block := range regexp.MustCompile("(?s)```\n(.*?)```").FindAllStringSubmatch(part, -1) {
		script.WriteString(block[1])
	}
	bin, err := built()
	require.NoError(t, err)
	commands := script.String()
	const build = "go build -o l4lb ./examples/l4lb\n"
	require.Contains(t, commands, build)
	require.Contains(t, part, "kill %3")
	commands = strings.Replace(commands, build, "cp "+bin+" l4lb\n", 1) // the same command has made it
	// It waits for conditions where a person looks.
	commands = strings.Replace(commands, "sleep 5\n", "for i in $(seq 300); do [[ $(./l4lb status 2>&1) =~ 2/2 ]] && break; sleep 0.1; done\n", 1)
	file := filepath.Join(t.TempDir(), "readme.sh")
	require.NoError(t, os.WriteFile(file, []byte("set -em\nmount -t tmpfs none /run\ncd "+t.TempDir()+"\n"+commands+"echo ended by: kill %3\nkill %3\nwait %3\nip link show lb0 2>&1 || true\nkill %1 %2\n"), 0o600))
	log := &rig.Log{}
	p := rig.Start(t, h.balancer, log, "unshare", "-m", "bash", file)
	t.Cleanup(p.End)
	select {
	case <-p.Done:
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "it does not end", "%v", log)
	}
	out := log.String()
	require.NoError(t, p.Err, out)
	require.Contains(t, out, "l4lb.yaml: right: 1 services, 1 farms, 2 nodes")
	require.Equal(t, 4, strings.Count(strings.Split(out, "SERVICE")[0], "hello from web1"), out)
	require.Equal(t, 2, strings.Count(strings.Split(out, "SERVICE")[0], "hello from web2"), out)
	require.Regexp(t, `web/web1: draining[^\n]*\n(.*\n)*?hello from web2\n`, out)
	require.Contains(t, out, "web/web1: available")
	require.Regexp(t, `lb0.*does not exist`, out)
}

// TestContainer makes the image of the container file by hand, as no registry is at hand for its base: nothing but the program built as there,
// in an empty root, with the environment, the volume and the commands of the file.
func TestContainer(t *testing.T) {
	chroot := testenv.NeedServers(t, "chroot", "unshare", "setpriv")[0]
	h := newHosts(t)
	require.NoError(t, h.balancer.Router())
	file, err := os.ReadFile("deploy/Containerfile")
	require.NoError(t, err)
	root := t.TempDir()
	for _, dir := range []string{"usr/local/bin", "var/lib/l4lb", "etc", "dev/net", "run", "proc", "sys", "src"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	build := regexp.MustCompile(`(?m)^RUN (CGO_ENABLED=0 go build .*) -o /l4lb (\./examples/l4lb)$`).FindStringSubmatch(string(file))
	require.NotNil(t, build)
	cmd := exec.Command("sh", "-c", build[1]+" -o "+filepath.Join(root, "usr/local/bin/l4lb")+" "+build[2])
	cmd.Dir = filepath.Join("..", "..")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, line := range []string{"COPY --from=build /l4lb /usr/local/bin/l4lb", "ENV STATE_DIRECTORY=/var/lib/l4lb", `ENTRYPOINT ["/usr/local/bin/l4lb"]`, `CMD ["run", "/etc/l4lb.yaml"]`} {
		require.Contains(t, string(file), line+"\n")
	}
	text := strings.Replace(fmt.Sprintf(labFile, "tun", "e1, e2"), "admin: {socket: none}\n", "", 1)
	require.NoError(t, os.WriteFile(filepath.Join(root, "etc/l4lb.yaml"), []byte(text), 0o600))
	// --cap-drop all --cap-add NET_ADMIN --cap-add NET_RAW --device /dev/net/tun, and the file systems that every container has.
	script := "mount -t proc none " + root + "/proc; mount -t sysfs none " + root + "/sys; touch " + root + "/dev/net/tun; mount --bind /dev/net/tun " + root + "/dev/net/tun\n" +
		"exec setpriv --bounding-set=-all,+net_admin,+net_raw,+sys_chroot --inh-caps=-all env -i STATE_DIRECTORY=/var/lib/l4lb " + chroot + " " + root + " /usr/local/bin/l4lb "
	log := &rig.Log{}
	p := rig.Start(t, h.balancer, log, "unshare", "-m", "sh", "-ec", script+"run /etc/l4lb.yaml")
	t.Cleanup(p.End)
	healthy := func() bool { // HEALTHCHECK
		return h.balancer.Do(exec.Command(chroot, root, "/usr/local/bin/l4lb", "status").Run) == nil
	}
	require.Eventually(t, healthy, patience, 200*time.Millisecond, "%v", log)
	for _, vip := range []string{"10.9.100.1", "fd09:100::1"} {
		require.Eventually(t, func() bool { _, err := h.get(vip); return err == nil }, patience, 50*time.Millisecond, "%v", log)
	}
	require.NoError(t, p.Stop(patience), "%v", log)
	require.FileExists(t, filepath.Join(root, "var/lib/l4lb/l4lb.state"))
}
