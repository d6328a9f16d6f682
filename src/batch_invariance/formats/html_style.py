"""How a report looks: one style sheet, with a palette for light, dark and paper, and five icons.

Every text colour stands at 4.5 to 1 or more on each ground that it is used on; a test works it out
from `LIGHT` and `DARK`. Colour is nowhere the only sign: each standing has its word and its shape.
"""

from __future__ import annotations

from collections.abc import Mapping

from batch_invariance.formats.html_markup import Markup

LIGHT: Mapping[str, str] = {
    "bg": "#ffffff",
    "card": "#f6f8fa",
    "fg": "#1b2027",
    "mute": "#55606c",
    "line": "#d4dae1",
    "link": "#0b57b7",
    "g-bg": "#d9f5e0",
    "g-fg": "#0d5125",
    "g-ln": "#2a8a48",
    "a-bg": "#fdeebc",
    "a-fg": "#644000",
    "a-ln": "#a86f00",
    "u-bg": "#ebe4fb",
    "u-fg": "#482a86",
    "u-ln": "#7d5bd0",
    "r-bg": "#ffe1dd",
    "r-fg": "#8c1414",
    "r-ln": "#cf3030",
    "n-bg": "#e9edf1",
    "n-fg": "#38414b",
    "n-ln": "#6d7883",
    "loud": "#a40f1c",
    "loud-fg": "#ffffff",
    "mark": "#ffd7d1",
    "mark-fg": "#6d0d0d",
    "c-a": "#5b7083",
    "c-a2": "#93a4b3",
    "c-b": "#2a8c8c",
    "c-c": "#2f6fd0",
    "c-p": "#b05a9c",
    "c-k": "#b98a2c",
    "c-w": "#c6ced6",
    "c-soft": "#d5e3f8",
}
DARK: Mapping[str, str] = {
    "bg": "#0e1217",
    "card": "#171d24",
    "fg": "#e4eaf0",
    "mute": "#9eabb8",
    "line": "#2f3842",
    "link": "#7db5ff",
    "g-bg": "#12301c",
    "g-fg": "#86e5a5",
    "g-ln": "#3fae62",
    "a-bg": "#352a0c",
    "a-fg": "#f2cb66",
    "a-ln": "#c2942c",
    "u-bg": "#2a2048",
    "u-fg": "#cdb9ff",
    "u-ln": "#8f73dd",
    "r-bg": "#401719",
    "r-fg": "#ffa39c",
    "r-ln": "#e0524f",
    "n-bg": "#232a32",
    "n-fg": "#c4cdd6",
    "n-ln": "#808b96",
    "loud": "#b3202c",
    "loud-fg": "#ffffff",
    "mark": "#6b2320",
    "mark-fg": "#ffe2de",
    "c-a": "#8fa3b5",
    "c-a2": "#66788a",
    "c-b": "#3fb0ae",
    "c-c": "#5b98f0",
    "c-p": "#cf7dbb",
    "c-k": "#d6a64a",
    "c-w": "#46515c",
    "c-soft": "#22344f",
}


def _palette(colours: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


_RULES = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--fg);font:16px/1.55 system-ui,-apple-system,
"Segoe UI",Roboto,"Helvetica Neue","DejaVu Sans",Arial,sans-serif}
main,header,footer{max-width:1120px;margin:0 auto;padding:0 20px}
header{padding-top:36px}
footer{padding-top:16px;padding-bottom:48px;color:var(--mute);font-size:14px}
h1{font-size:30px;line-height:1.2;margin:0 0 10px;letter-spacing:-.01em}
h2{font-size:21px;line-height:1.3;margin:40px 0 12px}
h3{font-size:17px;line-height:1.35;margin:0;overflow-wrap:anywhere}
h4{font-size:15px;line-height:1.35;margin:26px 0 8px}
p,li{overflow-wrap:anywhere}
p{margin:0 0 10px;max-width:74ch}
a{color:var(--link)}
small,.mute,.note{color:var(--mute)}
small{font-size:13px}.note{font-size:14px;max-width:none;margin:0 0 4px}
code,pre,.t{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;
font-size:13px}
code{overflow-wrap:anywhere}
pre i{font-style:normal;display:inline-block;max-width:100%}
pre{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 12px;
margin:0 0 10px;white-space:pre-wrap;overflow-wrap:anywhere}
ul{margin:0 0 10px;padding-left:20px}
.x{overflow-x:auto;position:relative;margin:0 0 10px;background:
linear-gradient(to right,var(--bg) 30%,transparent) left/24px 100% no-repeat local,
linear-gradient(to left,var(--bg) 30%,transparent) right/24px 100% no-repeat local,
linear-gradient(to right,var(--line),transparent) left/10px 100% no-repeat scroll,
linear-gradient(to left,var(--line),transparent) right/10px 100% no-repeat scroll}
.x:focus-visible,summary:focus-visible,a:focus-visible{outline:2px solid var(--link);
outline-offset:2px}
table{border-collapse:collapse;font-size:14px}
caption{text-align:left;color:var(--mute);font-size:13px;padding:0 0 6px}
th,td{text-align:left;vertical-align:top;padding:6px 12px 6px 0;border-bottom:1px solid var(--line)}
thead th{font-weight:600;color:var(--mute);font-size:13px;white-space:nowrap}
.num{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.i{width:16px;height:16px;flex:none;vertical-align:-3px;margin-right:5px}
.chip{display:inline-flex;align-items:center;white-space:nowrap;font-weight:650;font-size:13px;
line-height:1;padding:5px 9px 5px 7px;border:1.5px solid;border-radius:999px}
.cell{display:block;min-width:112px;padding:8px 10px;border:1.5px solid;border-radius:8px;
text-decoration:none;font-size:13px;line-height:1.35}
.g{background:var(--g-bg);color:var(--g-fg);border-color:var(--g-ln)}
.a{background:var(--a-bg);color:var(--a-fg);border-color:var(--a-ln)}
.u{background:var(--u-bg);color:var(--u-fg);border-color:var(--u-ln);border-style:dashed}
.r{background:var(--r-bg);color:var(--r-fg);border-color:var(--r-ln)}
.n{background:var(--n-bg);color:var(--n-fg);border-color:var(--n-ln);border-style:dotted}
.short{list-style:none;padding:0;margin:0 0 8px;display:grid;gap:8px}
.short li{display:grid;grid-template-columns:148px 1fr;gap:12px;align-items:start}
.short .chip{justify-self:start}
.short p,.short li>div{margin:0;max-width:none;overflow-wrap:anywhere}
.names a{display:inline-block;margin-right:14px;max-width:100%}
.matrix{border-collapse:separate;border-spacing:4px}
.hidden{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.matrix .none{text-align:center;vertical-align:middle;color:var(--mute)}
.matrix th,.matrix td{border:0;padding:0}.matrix thead [rowspan]{text-align:left}
.matrix thead th{text-align:center;padding:2px 6px 2px 0}
.matrix tbody th{padding:8px 14px 8px 0;max-width:300px;min-width:150px;font-weight:600;
overflow-wrap:anywhere}
.matrix tbody th,.matrix thead [rowspan]{position:sticky;left:0;background:var(--bg);z-index:1}
.matrix tbody th small{display:block;font-weight:400}
.cell+.cell{margin-top:4px}
.cell b{display:flex;align-items:center;white-space:nowrap}
.cell span{display:block;color:inherit}
.cell:hover b{text-decoration:underline}
.legend{display:grid;grid-template-columns:148px 1fr;gap:10px 14px;margin:0 0 12px;
align-items:start}
.legend dt{margin:0}.legend dd{margin:0;max-width:78ch}
details.c{border:1px solid var(--line);border-left:5px solid;border-radius:8px;margin:0 0 12px;
background:var(--bg)}
details.cg{border-left-color:var(--g-ln)}details.ca{border-left-color:var(--a-ln)}
details.cu{border-left-color:var(--u-ln)}details.cr{border-left-color:var(--r-ln)}
details.cn{border-left-color:var(--n-ln)}
summary{cursor:pointer}
details.c>summary{display:grid;grid-template-columns:auto 1fr auto;gap:4px 14px;align-items:center;
padding:12px 16px;list-style:none}
details.c>summary::-webkit-details-marker{display:none}
details.c>summary .why{grid-column:2;color:var(--mute);font-size:14px;overflow-wrap:anywhere}
details.c>summary .more{grid-column:3;grid-row:1/span 2;color:var(--link);font-size:14px;
white-space:nowrap}
.more::after{content:"details"}
details[open]>summary .more::after{content:"close"}
.body{padding:0 16px 16px;scroll-margin-top:84px}
.loud{background:var(--loud);color:var(--loud-fg);border-radius:8px;padding:12px 16px;
margin:4px 0 14px}
.loud p{max-width:none;margin:0 0 6px}.loud .t{color:inherit}
.loud mark{background:#fff;color:#7a0a14}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:8px;
margin:14px 0}
.figures div{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:9px 12px}
.figures dt{color:var(--mute);font-size:13px}
.figures dd{margin:0;font-size:18px;font-weight:600;font-variant-numeric:tabular-nums;
line-height:1.3;overflow-wrap:anywhere}
.figures dd small{display:block;font-weight:400}
.div{border:1px solid var(--line);border-radius:8px;padding:10px 12px;margin:0 0 10px}
.div p{margin:0 0 4px;font-size:14px;max-width:none;overflow-wrap:anywhere}
.two{display:grid;grid-template-columns:1fr 1fr;gap:10px;margin:8px 0 4px}
.two figure{margin:0;min-width:0}
figcaption{color:var(--mute);font-size:13px;margin:0 0 3px}
.t{background:var(--card);border-radius:6px;padding:8px 10px;margin:0;white-space:pre-wrap;
overflow-wrap:anywhere;unicode-bidi:isolate;max-height:22em;overflow:auto;line-height:1.5}
.loud .t{background:none;padding:0}
mark{background:var(--mark);color:var(--mark-fg);border-bottom:2px solid var(--r-ln);
font-weight:650;border-radius:2px}
.cut{color:var(--mute)}
svg.time{display:block;min-width:720px;width:100%;height:auto}
svg.hist{display:block;width:100%;max-width:560px;height:auto}
svg text{font:11px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",Arial,sans-serif;
fill:var(--mute)}
svg .row,svg .panel{font-size:12px;fill:var(--fg)}
svg .tick{text-anchor:middle}
.axis{stroke:var(--mute);stroke-width:1}
.a-a{--p:var(--c-a)}.a-a2{--p:var(--c-a2)}.a-b{--p:var(--c-b)}.a-c{--p:var(--c-c)}
.b{stroke:var(--p);fill:none}.key rect{fill:var(--p)}
.a-p{--p:var(--c-p)}.a-confirm{--p:var(--c-k)}.a-warmup{--p:var(--c-w)}.a-lost{--p:var(--r-ln)}
.q{fill:var(--card);stroke:var(--c-c);stroke-width:1}
.q-unknown{stroke-dasharray:3 2}.q-shared{fill:var(--c-soft)}
.q-lost{fill:var(--r-bg);stroke:var(--r-ln)}
.q-changed{fill:none;stroke:var(--r-ln);stroke-width:2}.q-flag{fill:var(--r-ln)}
svg .q-name{fill:var(--fg);font-size:11px}
.h-drift{fill:var(--c-k)}.h-margin{fill:var(--c-c)}
.key{display:flex;flex-wrap:wrap;gap:4px 16px;list-style:none;padding:0;margin:4px 0 16px;
font-size:13px;color:var(--mute)}
.key svg{width:12px;height:12px;margin-right:5px;vertical-align:-1px}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:0 36px;align-items:start}
.pair>div{min-width:0}
.bar{display:inline-block;width:150px;height:10px;background:var(--card);
border:1px solid var(--line);
border-radius:3px;vertical-align:0}
.bar i{display:block;height:100%;background:var(--c-c);border-radius:2px}
.bar .quiet{background:var(--c-a2)}
.wide td{min-width:130px}.gates td:nth-child(2){min-width:220px}.gates{width:100%}
.gates small{display:block}
.o{font-weight:650;white-space:nowrap;display:inline-flex;align-items:center}
.o-p{color:var(--g-fg)}.o-f{color:var(--r-fg)}.o-k{color:var(--u-fg)}.o-x{color:var(--mute)}
.facts{display:grid;grid-template-columns:minmax(110px,auto) 1fr;gap:4px 14px;margin:0;
font-size:14px}
.facts dt{color:var(--mute)}.facts dd{margin:0;overflow-wrap:anywhere;min-width:0}
.files{font-size:14px}
@media (max-width:720px){
body{font-size:15px}main,header,footer{padding-left:14px;padding-right:14px}
h1{font-size:25px}h2{margin-top:32px}
.two,.pair{grid-template-columns:1fr}
.short li,.legend{grid-template-columns:1fr;gap:4px}
.legend dd{margin-bottom:8px}
details.c>summary{grid-template-columns:1fr auto;padding:12px}
details.c>summary h3,details.c>summary .why{grid-column:1/-1}
details.c>summary .more{grid-column:2;grid-row:1}
details.c>summary .chip{justify-self:start}
.body{padding:0 12px 12px}
.matrix tbody th{min-width:112px;max-width:128px;font-size:13px;padding-right:8px}
.figures{grid-template-columns:1fr 1fr}
.facts{grid-template-columns:1fr;gap:0}.facts dd{margin-bottom:6px}
.gates thead,.wide thead{display:none}
.gates,.gates tbody,.gates caption,.wide,.wide tbody,.wide tr,.wide td,.wide caption{display:block}
.wide tr{padding:8px 0;border-bottom:1px solid var(--line)}
.wide td{border:0;padding:0;font-size:13px}.wide td:first-child{font-weight:600;font-size:14px}
.wide td:nth-child(3)::before{content:"first seen in "}
.wide td:nth-child(4):not(:empty)::before{content:"first different "}
.gates tr{display:grid;grid-template-columns:auto 1fr;gap:2px 10px;padding:8px 0;
border-bottom:1px solid var(--line)}
.gates td{border:0;padding:0}.gates td:nth-child(n+3){grid-column:1/-1;font-size:13px}
.gates td:nth-child(3)::before{content:"measured: ";color:var(--mute)}
.gates td:nth-child(4)::before{content:"required: ";color:var(--mute)}
}
@media print{
body{font-size:11pt}details.c{break-inside:auto}.more{display:none}
details::details-content{content-visibility:visible;block-size:auto;opacity:1}
.cell,.chip,mark,.bar i,.bar,svg,.t,.loud,.figures div{-webkit-print-color-adjust:exact;
print-color-adjust:exact}
svg.time{min-width:0}.x{overflow:visible}.div,svg,table{break-inside:avoid}
h2,h3,h4{break-after:avoid}
}
"""

STYLE = Markup(
    f":root{{color-scheme:light dark;{_palette(LIGHT)}}}"
    f"@media screen and (prefers-color-scheme:dark){{:root{{{_palette(DARK)}}}}}"
    + _RULES.replace(",\n", ",").replace("\n", "")
)
"""The style sheet."""

ICONS = Markup(
    '<svg width="0" height="0" aria-hidden="true" style="position:absolute"><defs>'
    '<symbol id="i-g" viewBox="0 0 16 16"><circle cx="8" cy="8" r="7" fill="none" '
    'stroke="currentColor" stroke-width="1.6"/><path d="M4.6 8.3l2.3 2.3 4.5-5" fill="none" '
    'stroke="currentColor" stroke-width="1.8"/></symbol>'
    '<symbol id="i-a" viewBox="0 0 16 16"><path d="M8 1.6l6.8 12.6H1.2z" fill="none" '
    'stroke="currentColor" stroke-width="1.6" stroke-linejoin="round"/><path d="M8 5.8v4.2M8 '
    '11.3v1.5" stroke="currentColor" stroke-width="1.7"/></symbol>'
    '<symbol id="i-u" viewBox="0 0 16 16"><circle cx="8" cy="8" r="7" fill="none" '
    'stroke="currentColor" stroke-width="1.6" stroke-dasharray="2.6 1.8"/><path d="M5.9 6.2a2.2 '
    '2.2 0 1 1 3 2c-.7.3-.9.7-.9 1.4M8 11v1.4" fill="none" stroke="currentColor" '
    'stroke-width="1.6"/></symbol>'
    '<symbol id="i-r" viewBox="0 0 16 16"><path d="M5 1h6l4 4v6l-4 4H5l-4-4V5z" fill="none" '
    'stroke="currentColor" stroke-width="1.6"/><path d="M5.2 5.2l5.6 5.6M10.8 5.2l-5.6 5.6" '
    'stroke="currentColor" stroke-width="1.8"/></symbol>'
    '<symbol id="i-n" viewBox="0 0 16 16"><rect x="1.5" y="1.5" width="13" height="13" rx="2" '
    'fill="none" stroke="currentColor" stroke-width="1.6" stroke-dasharray="1.5 1.5"/><path '
    'd="M4 12L12 4" stroke="currentColor" stroke-width="1.8"/></symbol>'
    '<symbol id="i-x" viewBox="0 0 16 16"><path d="M4 8h8" stroke="currentColor" '
    'stroke-width="1.8"/></symbol></defs></svg>'
)
"""The shape of each standing: ring with a tick, triangle, broken ring, octagon, dotted square."""
