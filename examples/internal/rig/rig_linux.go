package rig

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lbprim/lbprim/internal/netns"
)

// Hosts makes a namespace for each of the pointers, until the test ends.
func Hosts(t testing.TB, hosts ...**netns.Namespace) {
	t.Helper()
	for _, ns := range hosts {
		x, err := netns.New()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { x.Close() })
		*ns = x
	}
}

// A Cable goes from the interface eth0 of a host to an interface of a hub, which is the host's way to everywhere. Its networks are those of
// the formats V4 and V6, such as "10.7.%d.%d/24" and "fd07:%d::%d/64", with its number and the end: 1 is the hub, 2 the host.
type Cable struct {
	Hub, Host *netns.Namespace
	Name      string // of the hub's interface
	V4, V6    string
	Number    int
}

// Addrs are the addresses of an end.
func (c Cable) Addrs(end int) (addrs []netip.Prefix) {
	for _, format := range []string{c.V4, c.V6} {
		if format != "" {
			addrs = append(addrs, netip.MustParsePrefix(fmt.Sprintf(format, c.Number, end)))
		}
	}
	return addrs
}

// Plug joins the two.
func (c Cable) Plug(t testing.TB) {
	t.Helper()
	hub := c.Addrs(1)
	err := netns.Join(netns.End{NS: c.Host, Name: "eth0", Addrs: c.Addrs(2)}, netns.End{NS: c.Hub, Name: c.Name, Addrs: hub})
	if err == nil {
		var via []netip.Addr
		for _, p := range hub {
			via = append(via, p.Addr())
		}
		err = c.Host.DefaultVia(via...)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Direct joins a host to another by a cable of their own: the host's end has the name and the addresses with 1 behind the prefixes, the other's
// the same name and those with 2.
func Direct(t testing.TB, host, other *netns.Namespace, name, v4, v6 string) {
	t.Helper()
	addrs := func(end string) []netip.Prefix {
		return []netip.Prefix{netip.MustParsePrefix(v4 + end + "/24"), netip.MustParsePrefix(v6 + end + "/64")}
	}
	if err := netns.Join(netns.End{NS: host, Name: name, Addrs: addrs("1")}, netns.End{NS: other, Name: name, Addrs: addrs("2")}); err != nil {
		t.Fatal(err)
	}
}

// Shell runs a script in a namespace, and ends the test if that fails.
func Shell(t testing.TB, ns *netns.Namespace, script string) (out string) {
	t.Helper()
	var b []byte
	if err := ns.Do(func() (err error) {
		b, err = exec.Command("sh", "-ec", script).CombinedOutput()
		return err
	}); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, b)
	}
	return string(b)
}

// A Log can be read while it is written. The zero value is empty.
type Log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A Process is a program that runs.
type Process struct {
	*os.Process
	Log  *Log
	Done chan struct{} // closed when it has ended
	Err  error         // then
}

// Start starts a program in a namespace; log is nil for one of its own.
func Start(t testing.TB, ns *netns.Namespace, log *Log, name string, args ...string) *Process {
	t.Helper()
	if log == nil {
		log = &Log{}
	}
	p := &Process{Log: log, Done: make(chan struct{})}
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := ns.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	p.Process = cmd.Process
	go func() {
		p.Err = cmd.Wait()
		close(p.Done)
	}()
	return p
}

// Races fails the test if the race detector has found anything in the program.
func (p *Process) Races(t testing.TB) {
	t.Helper()
	if strings.Contains(p.Log.String(), "WARNING: DATA RACE") {
		t.Errorf("the program races:\n%v", p.Log)
	}
}

// End kills the program if it has not ended, even one that is stopped.
func (p *Process) End() {
	_ = p.Signal(syscall.SIGCONT)
	_ = p.Kill()
	<-p.Done
}

// Stop asks the program to end, and returns how it did.
func (p *Process) Stop(patience time.Duration) error {
	_ = p.Signal(syscall.SIGTERM)
	select {
	case <-p.Done:
		return p.Err
	case <-time.After(patience):
		p.End()
		return fmt.Errorf("not ended within %v", patience)
	}
}

// Build compiles the program of the current folder into dir: with the race detector if the environment variable LBPRIM_RACE is set. What the
// detector finds is in the program's log: see Races.
func Build(dir, name string) (bin string, err error) { return BuildOf(".", dir, name) }

// BuildOf is Build for the program of another folder.
func BuildOf(folder, dir, name string) (bin string, err error) {
	bin = dir + string(os.PathSeparator) + name
	args := []string{"build", "-o", bin}
	if os.Getenv("LBPRIM_RACE") != "" {
		args = append(args, "-race")
	}
	if out, err := exec.Command("go", append(args, folder)...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w: %s", err, out)
	}
	return bin, nil
}
