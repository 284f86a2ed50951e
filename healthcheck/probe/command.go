package probe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lbprim/lbprim/healthcheck"
)

// Command runs a program: exit status 0 is a pass. The first line it prints becomes the
// note, or part of the error. At the deadline the program and what it started are
// killed, and what it started and left behind also when it ends. The zero Command lacks
// the Path. It is a plain value, safe for concurrent use.
type Command struct {
	Path string // required; without a slash looked up in PATH
	// Args follow the name; in them {addr}, {port} and {target} stand for the
	// target's parts and its whole.
	Args []string
	// Env is the environment, as "NAME=value"; nil: that of this process. LB_ADDR,
	// LB_PORT and LB_TARGET are added.
	Env []string
	Dir string // working directory; empty: that of this process
	// InconclusiveStatus lists exit statuses that say nothing of the target, as 3
	// does in the convention of monitoring plug-ins.
	InconclusiveStatus []int
}

// maxCommandOutput bounds what is kept of a program's output.
const maxCommandOutput = 4 << 10

// commandGrace is how long a killed program's open pipes are waited for.
const commandGrace = 100 * time.Millisecond

// Validate reports all faults of p.
func (p Command) Validate() error {
	var errs []error
	if p.Path == "" {
		errs = append(errs, errors.New("probe: Command.Path: got none, want the program to run"))
	}
	for _, e := range p.Env {
		if !strings.Contains(e, "=") {
			errs = append(errs, fmt.Errorf("probe: Command.Env: got %q, want NAME=value", e))
		}
	}
	if slices.Contains(p.InconclusiveStatus, 0) {
		errs = append(errs, errors.New("probe: Command.InconclusiveStatus: got 0, want failing statuses only"))
	}
	return errors.Join(errs...)
}

// Probe implements [healthcheck.Prober].
func (p Command) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	if err := p.Validate(); err != nil {
		return invalid("command", target, err)
	}
	a := begin(ctx, "command", nil, target)
	defer a.end()
	a.step = p.Path
	return a.result(p.run(a))
}

func (p Command) run(a *attempt) error {
	addr, port := a.target.Addr().Unmap().String(), strconv.Itoa(int(a.target.Port()))
	whole := netip.AddrPortFrom(a.target.Addr().Unmap(), a.target.Port()).String()
	args := make([]string, len(p.Args))
	fill := strings.NewReplacer("{addr}", addr, "{port}", port, "{target}", whole)
	for i, s := range p.Args {
		args[i] = fill.Replace(s)
	}
	cmd := exec.CommandContext(a.ctx, p.Path, args...)
	cmd.Dir = p.Dir
	cmd.Env = p.Env
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(slices.Clip(cmd.Env), "LB_ADDR="+addr, "LB_PORT="+port, "LB_TARGET="+whole)
	var out bounded
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = commandGrace
	killGroup(cmd)
	err := cmd.Run()
	killRest(cmd)
	line := out.firstLine()
	exit, exited := errors.AsType[*exec.ExitError](err)
	switch {
	case a.ctx.Err() != nil:
		return &cutError{seen: line, err: a.ctx.Err()}
	case err == nil || errors.Is(err, exec.ErrWaitDelay): // succeeded, but left a child with the pipe
		a.note = line
		return nil
	case !exited:
		return localError{err} // it could not be run
	case exit.Exited() && slices.Contains(p.InconclusiveStatus, exit.ExitCode()):
		return localError{fmt.Errorf("%s: %s", exit.ProcessState, line)}
	}
	return healthcheck.Mismatch(fmt.Sprintf("%s: %s", exit.ProcessState, line), "exit status 0")
}

// bounded keeps the beginning of what is written to it.
type bounded struct{ b []byte }

func (w *bounded) Write(p []byte) (int, error) {
	w.b = append(w.b, p[:min(len(p), maxCommandOutput-len(w.b))]...)
	return len(p), nil
}

func (w *bounded) firstLine() string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(w.b)), "\n")
	return shorten(strings.TrimSpace(line))
}
