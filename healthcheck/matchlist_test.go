package healthcheck

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func mustMatchList(t testing.TB, fallback Verdict, rules ...MatchRule) *MatchList {
	l, err := NewMatchList(fallback, rules...)
	require.NoError(t, err)
	return l
}

func up(text string) MatchRule   { return MatchRule{Text: text, Verdict: Pass} }
func down(text string) MatchRule { return MatchRule{Text: text, Verdict: Fail} }
func kind(k MatchKind, r MatchRule) MatchRule {
	r.Kind = k
	return r
}
func span(r MatchRule, end string) MatchRule {
	r.Kind, r.End = MatchCompound, end
	return r
}

func TestMatchList(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		def   Verdict
		rules []MatchRule
		reply string
		want  Verdict
		rule  int // -1: default
	}{
		{"the earliest hit decides", Pass, []MatchRule{up("elephant"), down("monkey")}, "a monkey, an elephant", Fail, 1},
		{"whatever the order of the rules", Pass, []MatchRule{down("monkey"), up("elephant")}, "a monkey, an elephant", Fail, 0},
		{"the longer contains the shorter", Fail, []MatchRule{down("elephant"), up("elephantine")}, "an elephantine task", Pass, 1},
		{"the longer does not match", Fail, []MatchRule{down("elephant"), up("elephantine")}, "an elephant", Fail, 0},
		{"containing one that starts later", Fail, []MatchRule{down("phant"), up("elephantine")}, "elephantine", Pass, 1},
		{"a contained one, container incomplete", Pass, []MatchRule{down("phant"), up("elephantine")}, "elephantin", Fail, 0},
		{"default up", Pass, []MatchRule{down("x")}, "abc", Pass, -1},
		{"default down", Fail, []MatchRule{up("x")}, "abc", Fail, -1},
		{"empty reply", Pass, []MatchRule{down("x")}, "", Pass, -1},
		{"no rules", Fail, nil, "abc", Fail, -1},
		{"same text, both verdicts", Pass, []MatchRule{up("x"), down("x")}, "x", Fail, 1},
		{"compound", Fail, []MatchRule{span(up("<b>"), "</b>")}, "a <b>bold</b> word", Pass, 0},
		{"compound starts before the simple inside", Fail, []MatchRule{span(up("<b>"), "</b>"), down("error")}, "<b>error</b>", Pass, 0},
		{"compound without end", Fail, []MatchRule{span(up("<b>"), "</b>"), down("error")}, "<b>error", Fail, 1},
		{"compound: end only before begin", Fail, []MatchRule{span(up("<b>"), "</b>")}, "</b> <b>", Fail, -1},
		{"compound: begin and end do not overlap", Fail, []MatchRule{span(up("aba"), "aba")}, "ababa", Fail, -1},
		{"compound: begin and end touch", Fail, []MatchRule{span(up("aba"), "aba")}, "abaaba", Pass, 0},
		{"compound loses to an earlier one", Fail, []MatchRule{span(up("<b>"), "</b>"), down("error")}, "error <b>x</b>", Fail, 1},
		{"start", Fail, []MatchRule{kind(MatchStart, up("200"))}, "200 OK", Pass, 0},
		{"start, later", Fail, []MatchRule{kind(MatchStart, up("200"))}, " 200", Fail, -1},
		{"start, cut off", Fail, []MatchRule{kind(MatchStart, up("200"))}, "20", Fail, -1},
		{"start against longer simple", Fail, []MatchRule{kind(MatchStart, up("200")), down("200 OK")}, "200 OK", Fail, 1},
		{"end", Fail, []MatchRule{kind(MatchEnd, up("bye"))}, "good bye", Pass, 0},
		{"end, earlier only", Fail, []MatchRule{kind(MatchEnd, up("bye"))}, "bye now", Fail, -1},
		{"end contains a simple", Fail, []MatchRule{kind(MatchEnd, up("good bye")), down("bye")}, "a good bye", Pass, 0},
		{"end inside a simple", Pass, []MatchRule{kind(MatchEnd, up("bye")), down("good bye")}, "a good bye", Fail, 1},
		{"overlapping itself", Fail, []MatchRule{up("aab")}, "aaaab", Pass, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := mustMatchList(t, c.def, c.rules...)
			v, h := l.Match([]byte(c.reply))
			require.Equal(t, c.want, v)
			require.Equal(t, c.rule >= 0, h.OK)
			if h.OK {
				require.Equal(t, c.rule, h.Rule)
			}
			compareMatch(t, l, c.reply, []int{1})
			require.NotEmpty(t, l.Describe(h))
		})
	}
}

// slowMatch lists every hit and picks.
func slowMatch(l *MatchList, reply string) (Verdict, Hit) {
	cut := len(reply) > MaxReply
	reply = reply[:min(len(reply), MaxReply)]
	var best Hit
	for i, r := range l.rules {
		h := Hit{Rule: i}
		switch r.Kind {
		case MatchSimple:
			h.Start = strings.Index(reply, r.Text)
			h.End, h.OK = h.Start+len(r.Text), h.Start >= 0
		case MatchCompound:
			h.Start = strings.Index(reply, r.Text)
			if h.Start >= 0 {
				after := h.Start + len(r.Text)
				j := strings.Index(reply[after:], r.End)
				h.End, h.OK = after+j+len(r.End), j >= 0
			}
		case MatchStart:
			h.End, h.OK = len(r.Text), strings.HasPrefix(reply, r.Text)
		case MatchEnd:
			h.Start, h.End, h.OK = len(reply)-len(r.Text), len(reply), !cut && strings.HasSuffix(reply, r.Text)
		}
		better := !best.OK || h.Start < best.Start || h.Start == best.Start && (h.End > best.End ||
			h.End == best.End && r.Verdict == Fail && l.rules[best.Rule].Verdict == Pass)
		if h.OK && better {
			best = h
		}
	}
	if !best.OK {
		return l.fallback, Hit{}
	}
	return l.rules[best.Rule].Verdict, best
}

// compareMatch feeds reply in pieces whose sizes cycle through cuts, and compares
// with slowMatch. Once decided, nothing that follows may change the verdict.
func compareMatch(t testing.TB, l *MatchList, reply string, cuts []int) {
	want, wantHit := slowMatch(l, reply)
	got, hit := l.Match([]byte(reply))
	require.Equal(t, want, got, "%q with %+v", clip(reply), l.rules)
	require.Equal(t, wantHit, hit, "%q with %+v", clip(reply), l.rules)
	s := l.Scan()
	rest, decided := reply, false
	for i := 0; len(rest) > 0; i++ {
		n := min(max(1, cuts[i%len(cuts)]), len(rest))
		_, _ = s.Write([]byte(rest[:n]))
		rest = rest[n:]
		if s.Decided() && !decided {
			decided = true
			early := *s
			early.begun = append([]int32(nil), s.begun...)
			v, _ := early.Finish()
			require.Equal(t, want, v, "decided %d bytes before the end of %q with %+v", len(rest), clip(reply), l.rules)
		}
	}
	got, hit = s.Finish()
	require.Equal(t, want, got)
	require.Equal(t, wantHit, hit)
}

func TestMatchDecidesEarly(t *testing.T) {
	t.Parallel()
	l := mustMatchList(t, Pass, down("elephant"), up("elephantine"), span(down("<"), ">"))
	after := func(s string) bool {
		sc := l.Scan()
		_, _ = sc.Write([]byte(s))
		return sc.Decided()
	}
	require.False(t, after("an elephant"))
	require.True(t, after("an elephant "))
	require.True(t, after("an elephantine"))
	require.False(t, after("< an elephant ")) // the compound may still hit
	require.True(t, after("an elephant <"))
	require.False(t, after("an ant"))
	require.True(t, after(strings.Repeat("x", MaxReply)))
	require.True(t, mustMatchList(t, Pass, down("monkey")).decidedAfter("monkey"))
	require.False(t, mustMatchList(t, Pass, down("monkey"), kind(MatchEnd, up("a monkey"))).decidedAfter("a monkey"))
	require.False(t, mustMatchList(t, Pass, down("b"), kind(MatchStart, up("abc"))).decidedAfter("ab"))
	require.True(t, mustMatchList(t, Pass, down("b"), kind(MatchStart, up("abc"))).decidedAfter("abc"))
	require.True(t, mustMatchList(t, Pass).decidedAfter(""))
}

func (l *MatchList) decidedAfter(s string) bool {
	sc := l.Scan()
	_, _ = sc.Write([]byte(s))
	return sc.Decided()
}

func TestMatchLimit(t *testing.T) {
	t.Parallel()
	l := mustMatchList(t, Pass, down("needle"), kind(MatchEnd, down("hay")))
	hay := strings.Repeat("x", MaxReply-6)
	for _, c := range []struct {
		reply string
		want  Verdict
	}{
		{hay + "needle", Fail},
		{hay + " needle", Pass}, // its last byte is beyond
		{hay + "xxxhay", Fail},
		{hay + "xxxhay!", Pass}, // not the end
		{hay + "xxxhayhay", Pass},
	} {
		v, _ := l.Match([]byte(c.reply))
		require.Equal(t, c.want, v)
		compareMatch(t, l, c.reply, []int{1000, 7})
	}
	n, err := l.Scan().Write(make([]byte, 3*MaxReply))
	require.NoError(t, err)
	require.Equal(t, 3*MaxReply, n)
}

func TestMatchListErrorsAllAtOnce(t *testing.T) {
	t.Parallel()
	_, err := NewMatchList(Inconclusive, MatchRule{}, span(up("x"), ""), MatchRule{Text: "x", End: "y", Verdict: Pass}, MatchRule{Kind: 9, Text: strings.Repeat("x", 5000), Verdict: AssumedAlive})
	for _, want := range []string{
		"default verdict inconclusive, want pass or fail", "rule 0: Verdict inconclusive", "rule 0: Text of 0 bytes", "rule 1: End of 0 bytes",
		`rule 2: End "y" in a rule of kind simple`, "rule 3: Kind MatchKind(9)", "rule 3: Verdict assumed-alive", "rule 3: Text of 5000 bytes",
	} {
		require.ErrorContains(t, err, want)
	}
	_, err = NewMatchList(Pass, make([]MatchRule, maxMatchRules+1)...)
	require.ErrorContains(t, err, "1025 rules")
	testEnum(t, 4, (*MatchKind).UnmarshalText)
	require.Len(t, mustMatchList(t, Pass, up("x")).Rules(), 1)
}

func FuzzMatchList(f *testing.F) {
	f.Add([]byte("0ab|3b|1a;b|2a"), "aababab", []byte{1, 2})
	f.Add([]byte("0elephant|4elephantine|1<;>"), "an elephantine <task>", []byte{3})
	f.Fuzz(func(t *testing.T, spec []byte, reply string, cuts []byte) {
		var rules []MatchRule
		for part := range bytes.SplitSeq(spec, []byte("|")) {
			if len(part) < 2 {
				continue
			}
			r := MatchRule{Kind: MatchKind(part[0] % 4), Text: string(part[1:]), Verdict: Pass}
			if part[0]/4%2 == 1 {
				r.Verdict = Fail
			}
			if r.Kind == MatchCompound {
				r.Text, r.End, _ = strings.Cut(r.Text, ";")
			}
			rules = append(rules, r)
		}
		l, err := NewMatchList(Fail, rules...)
		if err != nil {
			return
		}
		sizes := []int{1}
		for _, c := range cuts {
			sizes = append(sizes, int(c))
		}
		compareMatch(t, l, reply, sizes)
	})
}

func BenchmarkMatchScan(b *testing.B) {
	l := mustMatchList(b, Pass, down("monkey"), up("elephantine"), down("elephant"), span(down("<error>"), "</error>"))
	page := []byte(strings.Repeat("the quick brown fox jumps over the lazy dog; ", 1000))
	b.SetBytes(int64(len(page)))
	for b.Loop() {
		l.Match(page)
	}
}

// At the limit it is not decided whether a text is at the end.
func TestMatchLimitCutThere(t *testing.T) {
	t.Parallel()
	l := mustMatchList(t, Pass, kind(MatchEnd, down("hay")))
	reply := strings.Repeat("x", MaxReply-3) + "hay"
	compareMatch(t, l, reply, []int{MaxReply})
	compareMatch(t, l, reply+"!", []int{MaxReply, 1})
	require.False(t, l.decidedAfter(reply))
	require.True(t, l.decidedAfter(reply+"!"))
}
