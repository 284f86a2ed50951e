// Package guides holds the guides to what they say: its test runs their commands and checks their files.
package guides

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/testenv"
)

// block is a fenced block: info is what stands behind the fence.
type block struct {
	info, text string
	line       int
}

func blocks(text string) (all []block) {
	var b *block
	n := 0
	for line := range strings.Lines(text) {
		n++
		switch fence, ok := strings.CutPrefix(line, "```"); {
		case ok && b == nil:
			b = &block{info: strings.TrimSpace(fence), line: n}
		case ok:
			all = append(all, *b)
			b = nil
		case b != nil:
			b.text += line
		}
	}
	return all
}

// build compiles the programs that the guides call.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"l4lb", "healthd", "replay", "convert"} {
		out, err := exec.Command("go", "build", "-o", filepath.Join(dir, name), "../"+name).CombinedOutput()
		require.NoErrorf(t, err, "%s", out)
	}
	return dir
}

// TestGuides goes through every guide in a folder of its own. A block
//
//	yaml file=NAME          is written to a file
//	go file=PATH            must stand in that file of the repository
//	console                 is run: lines behind $, each followed by what it prints, where … stands for anything
//	console root            likewise, lines behind #, in a namespace with two interfaces; ^C at the end of what a command prints
//	                        means that it goes on, and is interrupted once it has printed the rest
func TestGuides(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the guides are for Linux")
	}
	names, err := filepath.Glob("*.md")
	require.NoError(t, err)
	require.NotEmpty(t, names)
	bin := build(t)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			require.True(t, strings.HasPrefix(string(text), "# "), "a guide begins with its title")
			dir := t.TempDir()
			var host *netns.Namespace
			for _, b := range blocks(string(text)) {
				kind, rest, _ := strings.Cut(b.info, " ")
				file, hasFile := strings.CutPrefix(rest, "file=")
				switch {
				case kind == "yaml" || kind == "conf":
					require.Truef(t, hasFile, "line %d: files have a name", b.line)
					require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(b.text), 0o600))
				case kind == "go":
					require.Truef(t, hasFile, "line %d: programs stand in a file", b.line)
					source, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(file)))
					require.NoError(t, err)
					require.Containsf(t, string(source), b.text, "line %d: %s has other code", b.line, file)
				case kind == "console" && rest == "":
					console(t, dir, bin, b)
				case kind == "console" && rest == "root":
					if host == nil {
						host = router(t)
					}
					asRoot(t, host, dir, bin, b)
				case kind == "text":
				default:
					t.Errorf("line %d: block %q is not tested", b.line, b.info)
				}
			}
		})
	}
}

func console(t *testing.T, dir, bin string, b block) {
	t.Helper()
	for _, part := range strings.Split("\n"+b.text, "\n$ ")[1:] {
		command, want, _ := strings.Cut(part, "\n")
		cmd := exec.Command("sh", "-c", command)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "LC_ALL=C")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		_ = cmd.Run() // guides show faults, too
		pattern := "(?s)^" + strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(want)), "…", ".*") + "$"
		require.Regexpf(t, pattern, strings.TrimSpace(out.String()), "line %d: %s", b.line, command)
	}
}

// router is a host with a network of clients at eth0, who all keep asking for 192.0.2.80, and one of servers at eth1.
func router(t *testing.T) *netns.Namespace {
	t.Helper()
	testenv.NeedNetns(t)
	testenv.NeedServers(t, "unshare", "sysctl", "tcpdump", "python3")
	n, err := netns.New()
	require.NoError(t, err)
	t.Cleanup(func() { n.Close() })
	setup := `set -e
for i in 0 1; do
  ip link add eth$i type veth peer name peer$i
  ip link set eth$i up; ip link set peer$i up
done
ip link set lo up
for i in $(seq 20); do ip addr add 198.51.100.$i/24 dev peer0; done
ip neigh add 192.0.2.80 lladdr $(cat /sys/class/net/eth0/address) dev peer0
ip route add 192.0.2.80 dev peer0`
	var out []byte
	require.NoError(t, n.Do(func() (err error) {
		out, err = exec.Command("unshare", "-m", "sh", "-c", "mount -t sysfs none /sys;"+setup).CombinedOutput()
		return err
	}), "%s", out)
	clients := exec.Command("python3", "-c", `
import socket, time
while True:
    for i in range(1, 21):
        s = socket.socket()
        s.bind(("198.51.100.%d" % i, 0))
        s.setblocking(False)
        s.connect_ex(("192.0.2.80", 80))
        s.close()
        time.sleep(0.002)
`)
	require.NoError(t, n.Do(clients.Start))
	t.Cleanup(func() {
		_ = clients.Process.Kill()
		_ = clients.Wait()
	})
	return n
}

// asRoot runs commands in a namespace, with a /run of their own.
func asRoot(t *testing.T, n *netns.Namespace, dir, bin string, b block) {
	t.Helper()
	for _, part := range strings.Split("\n"+b.text, "\n# ")[1:] {
		command, want, _ := strings.Cut(part, "\n")
		want, goesOn := strings.CutSuffix(strings.TrimSpace(want), "^C")
		pattern := regexp.MustCompile("(?s)^" + strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(want)), "…", ".*") + "$")
		if goesOn {
			command = "exec " + command // which gets the signal itself
		}
		cmd := exec.Command("unshare", "-m", "sh", "-c", "mount -t tmpfs none /run; "+command)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "LC_ALL=C")
		var out output
		cmd.Stdout, cmd.Stderr = &out, &out
		require.NoError(t, n.Do(cmd.Start))
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		if goesOn {
			matches := assert.Eventually(t, func() bool { return pattern.MatchString(out.String()) }, time.Minute, 10*time.Millisecond, "line %d: %s", b.line, command)
			require.NoError(t, cmd.Process.Signal(os.Interrupt))
			require.Truef(t, matches, "%s", out.String())
		}
		select {
		case err := <-done:
			require.Truef(t, err == nil || !goesOn, "line %d: %s: %v: %s", b.line, command, err, out.String()) // guides show faults, too
		case <-time.After(time.Minute):
			_ = cmd.Process.Kill()
			require.FailNow(t, "it does not end", "line %d: %s: %s", b.line, command, out.String())
		}
		if !goesOn {
			require.Regexpf(t, pattern, out.String(), "line %d: %s", b.line, command)
		}
	}
}

// output collects what a process prints, while others look.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.TrimSpace(o.b.String())
}

// TestLinks: what guides link to exists, and every guide is in the list.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	names, err := filepath.Glob("*.md")
	require.NoError(t, err)
	list, err := os.ReadFile("README.md")
	require.NoError(t, err)
	for _, name := range names {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		prose := regexp.MustCompile("(?ms)^```.*?^```$").ReplaceAllString(string(text), "")
		for _, m := range link.FindAllStringSubmatch(prose, -1) {
			_, err := os.Stat(filepath.FromSlash(m[1]))
			require.NoErrorf(t, err, "%s links to %s", name, m[1])
		}
		if name != "README.md" {
			require.Containsf(t, string(list), "]("+name+")", "README.md does not list %s", name)
		}
	}
}
