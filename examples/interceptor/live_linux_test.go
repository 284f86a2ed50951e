package main

import (
	"bytes"
	"context"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/examples/internal/rig"
	"github.com/lbprim/lbprim/internal/testenv"
)

// One story in namespaces, shown on a terminal, as lines and as JSON at the same time: all of it is true, and what is shown moves while
// balancers and uplinks fail.
func TestStoryInNamespaces(t *testing.T) {
	testenv.NeedNetns(t)
	tty := rig.NewTerminal(t, 100, 40)
	drawn, ok := newDisplay(tty.TTY, false).(*screen)
	require.True(t, ok, "it draws on a terminal")
	var plain, objects bytes.Buffer
	j := &jsonLines{enc: json.NewEncoder(&objects)}
	show := together{drawn, &lines{w: &plain}, j}
	r, err := tell(t.Context(), patient(options{}), show)
	show.close()
	require.NoErrorf(t, err, "%s", &plain)
	j.report(r)
	require.Emptyf(t, r.untrue(), "%s", &plain)
	require.True(t, r.Verified)

	require.Equal(t, phases, strings.Count(plain.String(), "every balancer knows after"))
	require.Equal(t, phases, strings.Count(plain.String(), header))
	require.NotContains(t, plain.String(), "\x1b")
	states, said := ends(t, objects.String())
	requireLive(t, states)
	require.Equal(t, r, said)

	tty.Close()
	screens := tty.Screens()
	require.Greater(t, len(screens), 3*phases, "several a second")
	seen := map[string]bool{}
	moved := false // conversations, while not all balancers knew of a failure
	answered := regexp.MustCompile(`(\d+) packets answered meanwhile`)
	last := ""
	for _, s := range screens {
		text := strings.Split(s, "\n")
		require.Len(t, text, screenHeight+1, "%q", s) // with the end of the last line
		act := regexp.MustCompile(`act \d of 8`).FindString(text[0])
		seen[act] = true
		now := answered.FindStringSubmatch(s)
		require.NotNil(t, now, "%q", s)
		moved = moved || strings.Contains(text[1], "waiting until all know: ") && last != "" && last != act+now[1] && strings.HasPrefix(last, act)
		last = act + now[1]
	}
	require.Len(t, seen, phases)
	require.True(t, moved, "the screen shows what goes on while a failure is found")
	require.True(t, strings.HasSuffix(tty.Text(), "\x1b[?25h\n"), "the cursor is back")
}

// Ctrl-C ends it at once, and leaves the terminal as it was.
func TestInterrupted(t *testing.T) {
	testenv.NeedNetns(t)
	tty := rig.NewTerminal(t, 100, 40)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var errs bytes.Buffer
	status := make(chan int, 1)
	go func() { status <- run(ctx, nil, tty.TTY, &errs) }()
	deadline := time.Now().Add(time.Minute)
	for !strings.Contains(tty.Text(), "act 1 of 8") {
		require.True(t, time.Now().Before(deadline), "it draws")
		time.Sleep(20 * time.Millisecond)
	}
	cancel()
	select {
	case s := <-status:
		require.Equal(t, 130, s)
	case <-time.After(time.Minute):
		t.Fatal("it did not end")
	}
	require.Contains(t, errs.String(), "nothing is left behind")
	tty.Close()
	require.True(t, strings.HasSuffix(tty.Text(), "\x1b[?25h\n"), "the cursor is back")
}
