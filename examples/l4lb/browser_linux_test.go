package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/testenv"
)

// browser is a headless Chromium with one page, driven by the DevTools protocol over a pipe.
type browser struct {
	t        *testing.T
	in       *os.File
	out      *bufio.Reader
	next     int
	session  string
	deadline func() error // of one call
	events   []event
	asked    []string // by dialogs, which are answered yes
}

type event struct {
	Method string
	Params json.RawMessage
}

// newBrowser starts the browser inside a namespace.
func newBrowser(t *testing.T, ns *netns.Namespace) *browser {
	t.Helper()
	path := testenv.NeedServers(t, "chromium-headless-shell")[0]
	fromUs, toBrowser, err := os.Pipe()
	require.NoError(t, err)
	fromBrowser, toUs, err := os.Pipe()
	require.NoError(t, err)
	cmd := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
		"--ignore-certificate-errors", "--remote-debugging-pipe", "--user-data-dir="+filepath.Join(t.TempDir(), "profile"), "about:blank")
	cmd.ExtraFiles = []*os.File{fromUs, toUs}             // descriptors 3 and 4
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it has children
	require.NoError(t, ns.Do(cmd.Start))
	fromUs.Close()
	toUs.Close()
	b := &browser{t: t, in: toBrowser, out: bufio.NewReaderSize(fromBrowser, 1<<20)}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		toBrowser.Close()
		fromBrowser.Close()
	})
	b.deadline = func() error { return fromBrowser.SetReadDeadline(time.Now().Add(2 * patience)) }
	target := b.call("Target.createTarget", map[string]any{"url": "about:blank"})
	b.session = b.call("Target.attachToTarget", map[string]any{"targetId": target["targetId"], "flatten": true})["sessionId"].(string)
	for _, domain := range []string{"Page", "Runtime", "Log", "Network", "Accessibility", "DOM"} {
		b.call(domain+".enable", nil)
	}
	return b
}

// call calls a method and returns its result. Events that come meanwhile are kept.
func (b *browser) call(method string, params map[string]any) map[string]any {
	b.t.Helper()
	b.next++
	msg := map[string]any{"id": b.next, "method": method}
	if params != nil {
		msg["params"] = params
	}
	if b.session != "" {
		msg["sessionId"] = b.session
	}
	raw, err := json.Marshal(msg)
	require.NoError(b.t, err)
	_, err = b.in.Write(append(raw, 0))
	require.NoError(b.t, err)
	require.NoError(b.t, b.deadline())
	for {
		raw, err := b.out.ReadBytes(0)
		require.NoError(b.t, err, method)
		var m struct {
			ID     int
			Result map[string]any
			Error  *struct{ Message string }
			event
		}
		require.NoError(b.t, json.Unmarshal(raw[:len(raw)-1], &m))
		if m.ID != b.next {
			b.events = append(b.events, m.event)
			if m.Method == "Page.javascriptDialogOpening" { // it holds up the page, and the answer to this call
				b.answer(m.Params)
			}
			continue
		}
		if m.Error != nil {
			require.FailNow(b.t, method+": "+m.Error.Message)
		}
		return m.Result
	}
}

// answer says yes to a dialog. What comes of that comes among the events.
func (b *browser) answer(opening json.RawMessage) {
	b.t.Helper()
	var p struct{ Message string }
	require.NoError(b.t, json.Unmarshal(opening, &p))
	b.asked = append(b.asked, p.Message)
	raw, err := json.Marshal(map[string]any{"id": 1 << 30, "method": "Page.handleJavaScriptDialog", "params": map[string]any{"accept": true}, "sessionId": b.session})
	require.NoError(b.t, err)
	_, err = b.in.Write(append(raw, 0))
	require.NoError(b.t, err)
}

// tabs goes through the page by the Tab key, from its beginning, and returns what it meets: the labels or texts of elements, in order.
func (b *browser) tabs() {
	b.t.Helper()
	count := int(b.eval(`(() => {
  window.stops = [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']")].filter((e) => e.checkVisibility());
  return stops.length;
})()`).(float64))
	require.Greater(b.t, count, 30)
	for i := range count {
		b.key("Tab", "")
		require.EqualValues(b.t, i, b.eval("stops.indexOf(document.activeElement)"), "Tab meets the elements in the order of the page: %v", b.eval("document.activeElement.outerHTML.slice(0, 200)"))
		require.Equal(b.t, true, b.eval(`(() => { const s = getComputedStyle(document.activeElement); return s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2; })()`), "the focus is seen")
	}
}

// tabTo presses Tab until an element that is described by a condition on e has the focus.
func (b *browser) tabTo(condition string) {
	b.t.Helper()
	for range 200 {
		b.key("Tab", "")
		if b.eval("((e) => "+condition+")(document.activeElement)") == true {
			return
		}
	}
	require.FailNow(b.t, "Tab does not lead there", condition)
}

// eval evaluates an expression in the page, and what it promises.
func (b *browser) eval(expression string) any {
	b.t.Helper()
	r := b.call("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true})
	require.Nil(b.t, r["exceptionDetails"], expression)
	return r["result"].(map[string]any)["value"]
}

// until waits for an expression to be true.
func (b *browser) until(what, expression string) {
	b.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		r := b.call("Runtime.evaluate", map[string]any{"expression": "!!(" + expression + ")", "returnByValue": true})
		if v, ok := r["result"].(map[string]any)["value"].(bool); ok && v {
			return
		}
		if time.Now().After(end) {
			require.FailNow(b.t, what, "%s\n%v", expression, b.eval("document.body.innerText"))
		}
	}
}

func (b *browser) goTo(url string) {
	b.t.Helper()
	r := b.call("Page.navigate", map[string]any{"url": url})
	require.Nil(b.t, r["errorText"], url)
	b.until("loaded", fmt.Sprintf("document.readyState === 'complete' && location.href === %q", url))
}

// key presses a key where the focus is.
func (b *browser) key(key, text string) {
	b.t.Helper()
	code := map[string]int{"Enter": 13, "Tab": 9}[key]
	b.call("Input.dispatchKeyEvent", map[string]any{"type": "keyDown", "key": key, "code": key, "text": text, "windowsVirtualKeyCode": code})
	b.call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "code": key, "windowsVirtualKeyCode": code})
}

// enter writes into a field and presses Enter.
func (b *browser) enter(selector, text string) {
	b.t.Helper()
	b.eval(fmt.Sprintf("document.querySelector(%q).focus()", selector))
	b.eval(fmt.Sprintf("document.querySelector(%q).value = ''", selector))
	b.call("Input.insertText", map[string]any{"text": text})
	b.key("Enter", "\r")
}

// unnamed lists what a screen reader would announce without a name.
func (b *browser) unnamed() (bad []string) {
	b.t.Helper()
	nodes := b.call("Accessibility.getFullAXTree", nil)["nodes"].([]any)
	for _, x := range nodes {
		n := x.(map[string]any)
		if ignored, _ := n["ignored"].(bool); ignored {
			continue
		}
		text := func(key string) string {
			v, _ := n[key].(map[string]any)
			s, _ := v["value"].(string)
			return s
		}
		switch role := text("role"); role {
		case "button", "link", "textbox", "combobox", "image", "table", "region", "navigation", "heading", "columnheader", "rowheader":
			if text("name") == "" && role != "table" {
				bad = append(bad, role)
			}
		}
	}
	return bad
}

// complaints lists what the page did wrong: exceptions, violations of its own policy, and requests to others.
func (b *browser) complaints(base string) (bad []string) {
	for _, e := range b.events {
		switch e.Method {
		case "Runtime.exceptionThrown", "Log.entryAdded":
			if !strings.Contains(string(e.Params), "the server responded with a status of 4") { // the token and the filter were wrong on purpose
				bad = append(bad, string(e.Params))
			}
		case "Network.requestWillBeSent":
			var p struct{ Request struct{ URL string } }
			if json.Unmarshal(e.Params, &p) == nil && !strings.HasPrefix(p.Request.URL, base) && !strings.HasPrefix(p.Request.URL, "data:") && p.Request.URL != "about:blank" {
				bad = append(bad, "request to "+p.Request.URL)
			}
		}
	}
	return bad
}

// contrast is the least contrast of text against what is behind it, and where.
const contrast = `(() => {
  const parse = (c) => c.match(/[\d.]+/g).map(Number);
  const light = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  let worst = [99, ""];
  for (const e of document.querySelectorAll("body *")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || !e.checkVisibility() || e.closest("svg") || e.closest(".skip") || e.tagName === "OPTION") continue;
    let back = [255, 255, 255];
    for (let p = e; p; p = p.parentElement) { const c = parse(getComputedStyle(p).backgroundColor); if (c.length < 4 || c[3] === 1) { back = c; break; } }
    const s = getComputedStyle(e), a = light(parse(s.color).slice(0, 3)), b = light(back.slice(0, 3));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst[0]) worst = [ratio, e.outerHTML.slice(0, 120)];
  }
  return worst;
})()`
