package healthcheck

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/testenv"
)

func TestSlowStartServer(t *testing.T) {
	t.Parallel()
	s := SlowStart{Mode: ServerSlowStart}
	for sec, want := range map[int]int{0: 0, 1: 10, 19: 190, 20: 200, 21: 420, 29: 580, 30: -1, 31: -1, 1000: -1} {
		require.Equal(t, want, s.Sessions(time.Duration(sec)*time.Second, -1), "%d s", sec)
	}
	require.Equal(t, 200, s.Sessions(20*time.Second+999*time.Millisecond, -1))
	require.Equal(t, 0, s.Sessions(-time.Second, -1))
	require.Equal(t, 50, s.Sessions(20*time.Second, 50))
	require.Equal(t, 50, s.Sessions(30*time.Second, 50))
	require.Equal(t, 7, s.Weight(0, 7, -1))
	require.False(t, s.Done(29*time.Second))
	require.True(t, s.Done(30*time.Second))
}

func TestSlowStartRamps(t *testing.T) {
	t.Parallel()
	p := SlowStart{Mode: PortSlowStart}
	for sec, want := range map[int]int{0: 0, 6: 100, 30: 500, 59: 983, 60: 1000, 61: 1000} {
		require.Equal(t, want, p.Sessions(time.Duration(sec)*time.Second, 1000), "%d s", sec)
	}
	require.Equal(t, 10, p.Weight(30*time.Second, 10, 1000)) // the limit does it
	require.Equal(t, 5, p.Weight(30*time.Second, 10, -1))    // no limit: the weight
	require.Equal(t, -1, p.Sessions(30*time.Second, -1))

	l := SlowStart{Mode: LinearSlowStart, Window: 10 * time.Second}
	for sec, want := range map[int]int{-1: 1, 0: 1, 1: 10, 5: 50, 9: 90, 10: 100, 11: 100} {
		require.Equal(t, want, l.Weight(time.Duration(sec)*time.Second, 100, -1), "%d s", sec)
	}
	require.Equal(t, 0, l.Weight(time.Second, 0, -1))
	require.Equal(t, 33, l.Sessions(time.Second, 33))
	require.Equal(t, DefaultRamp, SlowStart{Mode: LinearSlowStart}.Length())
	// It never goes back, and never above what there is.
	for _, s := range []SlowStart{p, l, {Mode: ServerSlowStart}, {}} {
		w, n := 0, 0
		for d := time.Duration(0); d < 2*time.Minute; d += 100 * time.Millisecond {
			w2, n2 := s.Weight(d, 1<<30, 1<<30), s.Sessions(d, 1<<30)
			require.GreaterOrEqual(t, w2, w)
			require.GreaterOrEqual(t, n2, n)
			require.LessOrEqual(t, max(w2, n2), 1<<30)
			w, n = w2, n2
		}
		require.Equal(t, 1<<30, w)
		require.Equal(t, 1<<30, n)
	}
	require.Equal(t, 1<<20, SlowStart{}.Sessions(0, 1<<20))
}

func TestSlowStartValidate(t *testing.T) {
	t.Parallel()
	require.NoError(t, SlowStart{}.Validate())
	require.NoError(t, SlowStart{Mode: LinearSlowStart, Window: time.Minute}.Validate())
	require.ErrorContains(t, SlowStart{Mode: 9}.Validate(), "Mode 9")
	require.ErrorContains(t, SlowStart{Mode: ServerSlowStart, Window: 1}.Validate(), "want 0")
	require.ErrorContains(t, SlowStart{Mode: LinearSlowStart, Window: -1}.Validate(), "up to 24h")
}

func TestMinimumServers(t *testing.T) {
	t.Parallel()
	require.True(t, MinimumServers(2, Active, Failed, Suspect))
	require.False(t, MinimumServers(3, Active, Failed, Suspect, Graceful, Testing))
	require.False(t, MinimumServers(0, Failed))
	require.False(t, MinimumServers(0))
	require.True(t, MinimumServers(0, Active))
}

func TestReassignThreshold(t *testing.T) {
	t.Parallel()
	var c SYNCount
	sent := func(n int) (failed bool) {
		for range n {
			failed = c.SYN() || failed
		}
		return failed
	}
	require.False(t, sent(20))
	c.SYNACK()
	require.False(t, sent(20))
	require.False(t, c.Failed())
	require.True(t, sent(1)) // 21 in a row
	require.True(t, c.Failed())
	require.False(t, sent(100000)) // said once
	require.True(t, c.Failed())
	c.SYNACK()
	require.False(t, c.Failed())
	require.True(t, sent(21))

	dsr, err := NewSYNCount(6, true)
	require.NoError(t, err)
	for range 10000 {
		require.False(t, dsr.SYN())
	}
	require.False(t, dsr.Failed())

	none, err := NewSYNCount(-1, false)
	require.NoError(t, err)
	for range 10000 {
		require.False(t, none.SYN())
	}
	require.False(t, none.Failed())
	require.EqualError(t, none.Result(netip.AddrPort{}).Err, "passive: connections unanswered")
	_, err = NewSYNCount(MaxReassign+1, false)
	require.ErrorContains(t, err, "want 1 to 1048576")
	// Another threshold counts anew: the count cannot have passed it unnoticed.
	c.set(5, false)
	require.False(t, sent(5))
	require.True(t, sent(1))
	c.set(5, false)
	require.True(t, c.Failed())
	most, err := NewSYNCount(4000, false)
	require.NoError(t, err)
	for range 4000 {
		require.False(t, most.SYN())
	}
	require.True(t, most.SYN())
	require.Equal(t, 4001, most.Unanswered())
	r := most.Result(netip.MustParseAddrPort("192.0.2.1:80"))
	require.True(t, r.Final)
	require.ErrorIs(t, r.Err, ErrUnanswered)
	require.EqualError(t, r.Err, "passive: connections unanswered: more than 4000 SYNs in a row")
}

func TestPassiveInputsAllocateNothing(t *testing.T) {
	var c SYNCount
	var tr Traffic
	now := time.Now()
	require.Zero(t, testing.AllocsPerRun(100, func() { c.SYN(); c.SYNACK(); tr.Sent(now); tr.Heard() }))
}

func TestReassignThresholdFiresOnceConcurrently(t *testing.T) {
	t.Parallel()
	var c SYNCount
	var wg sync.WaitGroup
	fired := make(chan bool, 100)
	for range 4 {
		wg.Go(func() {
			for range 5000 {
				if c.SYN() {
					fired <- true
				}
			}
		})
	}
	wg.Wait()
	require.Len(t, fired, 1)
}

func TestPortToCheck(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		in   PortProfile
		want PortCheck
	}{
		{"FTP", PortProfile{Port: 21}, PortCheck{FTP, OverTCP, 21}},
		{"TELNET", PortProfile{Port: 23}, PortCheck{TELNET, OverTCP, 23}},
		{"SMTP", PortProfile{Port: 25}, PortCheck{SMTP, OverTCP, 25}},
		{"HTTP", PortProfile{Port: 80}, PortCheck{HTTP, OverTCP, 80}},
		{"POP3", PortProfile{Port: 110}, PortCheck{POP3, OverTCP, 110}},
		{"NNTP", PortProfile{Port: 119}, PortCheck{NNTP, OverTCP, 119}},
		{"IMAP4", PortProfile{Port: 143}, PortCheck{IMAP4, OverTCP, 143}},
		{"LDAP", PortProfile{Port: 389}, PortCheck{LDAP, OverTCP, 389}},
		{"SSL", PortProfile{Port: 443}, PortCheck{SSL, OverTCP, 443}},
		{"RTSP", PortProfile{Port: 554}, PortCheck{RTSP, OverTCP, 554}},
		{"MMS", PortProfile{Port: 1755}, PortCheck{MMS, OverTCP, 1755}},
		{"PNM", PortProfile{Port: 7070}, PortCheck{PNM, OverTCP, 7070}},
		{"DNS", PortProfile{Port: 53}, PortCheck{DNS, OverUDP, 53}},
		{"RADIUS", PortProfile{Port: 1812}, PortCheck{RADIUS, OverUDP, 1812}},
		{"old RADIUS", PortProfile{Port: 1645}, PortCheck{RADIUS, OverUDP, 1645}},
		{"FTP data is no FTP", PortProfile{Port: 20, Transport: OverTCP}, PortCheck{TCP, OverTCP, 20}},
		{"other TCP port", PortProfile{Port: 8080, Transport: OverTCP}, PortCheck{TCP, OverTCP, 8080}},
		{"protocol named", PortProfile{Port: 8080, Transport: OverTCP, Method: HTTP}, PortCheck{HTTP, OverTCP, 8080}},
		{"another protocol named", PortProfile{Port: 443, Method: SSLComplete}, PortCheck{SSLComplete, OverTCP, 443}},
		{"switched to Layer 4", PortProfile{Port: 80, Layer: Layer4}, PortCheck{TCP, OverTCP, 80}},
		{"named, switched to Layer 4", PortProfile{Port: 8080, Transport: OverTCP, Method: HTTP, Layer: Layer4}, PortCheck{TCP, OverTCP, 8080}},
		{"well known, switched to Layer 7", PortProfile{Port: 80, Layer: Layer7}, PortCheck{HTTP, OverTCP, 80}},
		{"unknown, switched to Layer 7", PortProfile{Port: 8080, Transport: OverTCP, Layer: Layer7}, PortCheck{TCP, OverTCP, 8080}},
		{"undeclared is UDP", PortProfile{Port: 8080}, PortCheck{UDP, OverUDP, 8080}},
		{"TCP 53 is unknown", PortProfile{Port: 53, Transport: OverTCP}, PortCheck{TCP, OverTCP, 53}},
		{"UDP 80 is unknown", PortProfile{Port: 80, Transport: OverUDP}, PortCheck{UDP, OverUDP, 80}},
		{"UDP switched to Layer 7", PortProfile{Port: 5000, Transport: OverUDP, Layer: Layer7}, PortCheck{UDP, OverUDP, 5000}},
		{"DNS switched to Layer 4", PortProfile{Port: 53, Layer: Layer4}, PortCheck{DNS, OverUDP, 53}},
		{"DNS elsewhere", PortProfile{Port: 5353, Method: DNS}, PortCheck{DNS, OverUDP, 5353}},
		{"RADIUS elsewhere, switched", PortProfile{Port: 11812, Method: RADIUS, Layer: Layer4}, PortCheck{RADIUS, OverUDP, 11812}},
		{"TFTP's port alone", PortProfile{Port: 69}, PortCheck{UDP, OverUDP, 69}},
		{"TFTP named", PortProfile{Port: 69, Method: TFTP}, PortCheck{TFTP, OverUDP, 69}},
		{"element, Layer 4", PortProfile{Port: 8080, Transport: OverTCP, Element: true, Layer: Layer4}, PortCheck{TCP, OverTCP, 8080}},
		{"element, no switch", PortProfile{Port: 8080, Transport: OverTCP, Element: true}, PortCheck{TCP, OverTCP, 8080}},
		{"element, named", PortProfile{Port: 8080, Transport: OverTCP, Element: true, Layer: Layer7, Method: HTTP}, PortCheck{HTTP, OverTCP, 8080}},
		{"element, well known", PortProfile{Port: 80, Element: true, Layer: Layer7}, PortCheck{HTTP, OverTCP, 80}},
		{"based on another", PortProfile{Port: 8080, Transport: OverTCP, BasedOn: 80}, PortCheck{HTTP, OverTCP, 80}},
		{"based on itself", PortProfile{Port: 80, BasedOn: 80}, PortCheck{HTTP, OverTCP, 80}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.in.Resolve()
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
	_, err := PortProfile{Port: 8080, Transport: OverTCP, Element: true, Layer: Layer7}.Resolve()
	require.ErrorIs(t, err, ErrNoMethod)
	for want, in := range map[string]PortProfile{
		"Port 0":                            {},
		"BasedOn 8080, want 0":              {Port: 80, BasedOn: 8080},
		"Method http on a port that is udp": {Port: 8080, Method: HTTP},
		"Method tcp, want a Layer 7":        {Port: 8080, Method: TCP},
		"Method dns on a port that is tcp":  {Port: 80, Method: DNS},
		"want known values":                 {Port: 80, Method: 200},
	} {
		_, err := in.Resolve()
		require.ErrorContains(t, err, want)
	}
	require.Len(t, WellKnownPorts(), 15)
	for _, w := range WellKnownPorts() {
		require.Equal(t, w.Transport, w.Method.Transport())
		require.Equal(t, 7, w.Method.Layer())
	}
}

func TestParseAgent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   string
		want AgentReport
	}{
		{"75%\n", AgentReport{Weight: 75, HasWeight: true}},
		{"0%", AgentReport{HasWeight: true}},
		{"up", AgentReport{Verdict: Pass}},
		{"UP 100%\r\n", AgentReport{Verdict: Pass, Weight: 100, HasWeight: true}},
		{"drain", AgentReport{Admin: AgentDrain}},
		{"maint\nup", AgentReport{Admin: AgentMaint}},
		{"ready", AgentReport{Admin: AgentReady}},
		{"down", AgentReport{Verdict: Fail}},
		{"stopped # for repair\n", AgentReport{Verdict: Fail, Reason: "for repair"}},
		{"fail#disk, 100% full", AgentReport{Verdict: Fail, Reason: "disk, 100% full"}},
		{"failed", AgentReport{Verdict: Fail}},
		{"\t maxconn:30 , , 50%", AgentReport{MaxConn: 30, HasMaxConn: true, Weight: 50, HasWeight: true}},
		{"maxconn:0", AgentReport{HasMaxConn: true}},
		{"down up", AgentReport{Verdict: Pass}},
	} {
		got, err := ParseAgent(c.in)
		require.NoError(t, err, c.in)
		require.Equal(t, c.want, got, c.in)
	}
	for _, in := range []string{"", "\n", "#up", "yes", "75", "%", "-5%", "+5%", "7.5%", "9999999%", "99999999999999999999%", "maxconn:", "maxconn:x", "maxconn:-1"} {
		got, err := ParseAgent(in)
		require.ErrorContains(t, err, "want one of", in)
		require.Zero(t, got)
	}
	r := AgentReport{Verdict: Fail, Reason: "disk full"}.Result()
	require.Equal(t, Fail, r.Verdict)
	require.ErrorIs(t, r.Err, ErrAgentDown)
	require.EqualError(t, r.Err, "agent says down: disk full")
	require.Equal(t, Pass, AgentReport{Admin: AgentMaint}.Result().Verdict)
}

func TestParseAgentVector(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(testenv.SharedFile(t, "vectors/vectors.json"))
	require.NoError(t, err)
	var v struct {
		Agent struct {
			Line string
			Want struct {
				Weight, MaxConn int
				Admin, Oper     string
			}
		}
	}
	require.NoError(t, json.Unmarshal(raw, &v))
	got, err := ParseAgent(strings.ReplaceAll(v.Agent.Line, `\n`, "\n"))
	require.NoError(t, err)
	require.Equal(t, v.Agent.Want.Weight, got.Weight)
	require.Equal(t, v.Agent.Want.MaxConn, got.MaxConn)
	require.Equal(t, v.Agent.Want.Admin, got.Admin.String())
	require.Equal(t, "down", v.Agent.Want.Oper)
	require.Equal(t, Fail, got.Verdict)
}

func FuzzParseAgent(f *testing.F) {
	f.Add("75%,maxconn:30,maint,down # why\n")
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseAgent(s)
		if err != nil {
			require.Zero(t, r)
			return
		}
		require.True(t, r.Weight >= 0 && r.Weight <= maxAgentNumber && r.MaxConn >= 0 && r.MaxConn <= maxAgentNumber)
	})
}

func TestProbeError(t *testing.T) {
	t.Parallel()
	target := netip.MustParseAddrPort("[2001:db8::1]:25")
	r := Failure("smtp: greeting", target, Mismatch("554 no service", "220"))
	require.EqualError(t, r.Err, `smtp: greeting: got "554 no service", want 220`)
	require.ErrorIs(t, r.Err, ErrMismatch)
	var pe *ProbeError
	require.ErrorAs(t, r.Err, &pe)
	require.Equal(t, target, pe.Target)
	require.EqualError(t, &ProbeError{Op: "dial"}, "dial: failed")
	require.EqualError(t, &ProbeError{Err: errors.New("x")}, "x")
	require.ErrorContains(t, Mismatch([]byte(strings.Repeat("x", 5000)), "y"), `x"…, want y`)
	var me *MismatchError
	require.ErrorAs(t, Mismatch(strings.Repeat("x", 5000), "y"), &me)
	require.Len(t, me.Got, maxKept)
	cause := errors.New("no route")
	u := Undecided("icmp: send", target, cause)
	require.Equal(t, Inconclusive, u.Verdict)
	require.EqualError(t, u.Err, "icmp: send: local: no route")
	require.ErrorIs(t, u.Err, cause)
	require.ErrorIs(t, u.Err, ErrLocal)
}

// A clock that is set back neither makes a server suspect nor hides its silence.
func TestTrafficClockSetBack(t *testing.T) {
	t.Parallel()
	var tr Traffic
	now := time.Now()
	tr.Sent(now)
	tr.Sent(now.Add(time.Second))
	require.Equal(t, time.Second, tr.silent())
	now = now.Add(-time.Hour)
	tr.Sent(now)
	require.Zero(t, tr.silent())
	tr.Heard()
	tr.Sent(now.Add(time.Second))
	require.Zero(t, tr.silent())
	tr.Sent(now.Add(5 * time.Second))
	require.Equal(t, 4*time.Second, tr.silent())
}
