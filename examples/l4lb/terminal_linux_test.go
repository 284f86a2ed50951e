package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lbprim/lbprim/examples/internal/rig"
	"github.com/lbprim/lbprim/internal/testenv"
)

// pty opens a terminal: what one end writes the other reads.
func pty(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { master.Close() })
	fd := int(master.Fd()) //nolint:gosec // a small number
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	require.NoError(t, err)
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	return master, slave
}

// top watches the balancer on a terminal, which changes its size, until Ctrl-C.
func (p *process) top(t *testing.T) {
	t.Helper()
	bin, err := built()
	require.NoError(t, err)
	master, slave := pty(t)
	size := func(columns, rows uint16) {
		require.NoError(t, unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows})) //nolint:gosec // a small number
	}
	size(40, 8)
	cmd := exec.Command(bin, "top", "-every", "100ms")
	cmd.Env = append(os.Environ(), "L4LB_SOCKET="+p.socket, "TERM=xterm") // which CI may not have
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 1}
	require.NoError(t, p.h.balancer.Do(cmd.Start))
	slave.Close()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	screen := &rig.Log{}
	go func() { _, _ = io.Copy(screen, master) }()
	// frames are the whole pictures so far: each begins at the corner and clears what is left below it.
	frames := func() (all []string) {
		for _, m := range regexp.MustCompile(`(?s)\x1b\[H(.*?)\x1b\[J`).FindAllStringSubmatch(screen.String(), -1) {
			all = append(all, strings.ReplaceAll(m[1], "\x1b[K", ""))
		}
		return all
	}
	p.eventually("it draws", func() bool { return len(frames()) >= 3 })
	require.True(t, strings.HasPrefix(screen.String(), "\x1b[?1049h\x1b[?25l"), "on the other screen, without a cursor")
	small := frames()[0]
	require.LessOrEqual(t, strings.Count(small, "\n"), 7)
	for line := range strings.SplitSeq(small, "\r\n") {
		require.LessOrEqual(t, len([]rune(line)), 40)
	}
	require.Contains(t, small, "l4lb: ready, up ")
	size(160, 60)
	p.eventually("it uses the room", func() bool {
		all := frames()
		last := all[len(all)-1]
		return regexp.MustCompile(`web4 +10.9.100.1 tcp/80 +v4 +2/2`).MatchString(last) && regexp.MustCompile(`v6/s2 +available`).MatchString(last) && strings.Contains(last, "rates of the last round")
	})
	_, err = master.Write([]byte{3})
	require.NoError(t, err)
	require.NoError(t, <-ended)
	p.eventually("the screen is as before", func() bool { return strings.HasSuffix(screen.String(), "\x1b[?25h\x1b[?1049l") })
}

// completes has real shells complete commands, flags, and the names of the running balancer's nodes.
func (p *process) completes(t *testing.T) {
	t.Helper()
	shells := testenv.NeedServers(t, "bash", "zsh", "fish")
	bin, err := built()
	require.NoError(t, err)
	run := func(shell, script string) string {
		var out []byte
		require.NoError(t, p.h.balancer.Do(func() (err error) {
			cmd := exec.Command(shell, "-c", script) //nolint:gosec // a shell
			cmd.Dir = t.TempDir()
			cmd.Env = append(os.Environ(), "L4LB_SOCKET="+p.socket, "PATH="+filepath.Dir(bin)+":"+os.Getenv("PATH"), "HOME="+cmd.Dir, "XDG_CONFIG_HOME="+cmd.Dir, "TERM=dumb")
			out, err = cmd.CombinedOutput()
			return err
		}), "%s", out)
		return strings.TrimSpace(string(out))
	}
	bash, fish := p.must("completion", "bash"), p.must("completion", "fish")
	for words, want := range map[string]string{
		"l4lb dra": "drain", "l4lb drain v4/": "v4/s1 v4/s2", "l4lb sessions -cl": "-client",
	} {
		got := run(shells[0], bash+"\nCOMP_WORDS=("+words+"); COMP_CWORD=$((${#COMP_WORDS[@]}-1)); _l4lb; echo ${COMPREPLY[@]}")
		require.Equal(t, want, got, "bash: %s", words)
		var names []string
		for line := range strings.Lines(run(shells[2], fish+"\ncomplete -C '"+words+"'")) {
			name, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
			names = append(names, name)
		}
		require.Subset(t, names, strings.Fields(want), "fish: %s", words)
	}
	// zsh runs the same function as bash, once it has loaded what runs completions of bash.
	require.Equal(t, "_l4lb: function", run(shells[1], p.must("completion", "zsh")+"\nwhence -w _l4lb"))
}

// The manual has every command with its flags, and groff has nothing against it.
func TestManual(t *testing.T) {
	groff := testenv.NeedServers(t, "groff")[0]
	status, man, errs := invoke(t, "man")
	require.Zero(t, status, errs)
	cmd := exec.Command(groff, "-man", "-Tutf8", "-P-c", "-P-b", "-P-u", "-ww", "-rLL=200n")
	cmd.Stdin = strings.NewReader(man)
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	require.NoError(t, err, complaints.String())
	require.Empty(t, complaints.String())
	page := strings.NewReplacer("‐", "-", "−", "-").Replace(string(out))
	for _, c := range program().Commands {
		require.Regexp(t, `(?m)^ +`+regexp.QuoteMeta(strings.TrimSpace(c.Name+" "+c.Args))+`$`, page)
		status, help, _ := invoke(t, "help", c.Name)
		require.Zero(t, status)
		for _, m := range regexp.MustCompile(`(?m)^  (-\S+.*)\n +(.*)$`).FindAllStringSubmatch(help, -1) {
			require.Contains(t, page, m[1], c.Name)
		}
	}
}
