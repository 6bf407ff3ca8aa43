"""Letters that look like ASCII letters: plain data, no code.

The idea is the skeleton of Unicode Technical Standard 39 (Security Mechanisms, section 4). What
compatibility decomposition (NFKD) takes apart is left out: full-width, mathematical, circled and
accented letters. The Latin ones come from the character names in `unicodedata` ("… WITH STROKE",
"SMALL CAPITAL …", "NEGATIVE SQUARED …", "REGIONAL INDICATOR …"); the Cyrillic, Greek, Armenian,
Coptic, Cherokee, Lisu and Canadian ones were picked by eye. Where capital and small letter look
different, each stands in its own row (Greek Ν and ν).
"""

# Hard to tell apart at reading size.
LOOKALIKES = {
    "a": "Ⱥᴀᶏⱥ🅐🅰🇦ɑⱭꭤаАαΑᎪꓮ𐊠",
    "b": "ƀƁƂƃɃɓʙᵬᶀꞖꞗ🅑🅱🇧ƄƅВвьᏼΒᏴꓐ𐊂ᗷ",
    "c": "ƇƈȻȼɕᴄꞒꞓꞔꟄ𝼝🅒🅲🇨ↄсСϲϹᏟꓚⲥⲤᑕ",
    "d": "ĐđƊƋƌȡɖɗᴅᵭᶁᶑꝹꝺꟇꟈ🅓🅳🇩ðÐԁԀժᎠꓓᗞᗪ",
    "e": "Ɇɇᴇᶒⱸꬲꬳꬴ🅔🅴🇪ɛƐǝƎ℮еЕΕεᎬꓰⴹᗴ",
    "f": "ƑƒᵮᶂꜰꝻꝼꞘꞙ🅕🅵🇫ғҒϝϜꓝᖴ𐊇",
    "g": "ƓǤǥɠɡɢʛᵹᶃꝽꞠꞡꞬꬶ🅖🅶🇬ԍԌցՑᏀꓖ",
    "h": "ĦħɦʜⱧⱨⱵⱶꞕꞪ🅗🅷🇭һҺнНΗհᎻꓧⲏⲎ",
    "i": "ıƗɨɪᶖ𝼚🅘🅸🇮ɩƖіІӏӀιΙᎥꓲⲓⲒᏽ",
    "j": "ȷɈɉɟʄʝᴊꞲ🅙🅹🇯јЈϳͿյᎫꓙᒍ",
    "k": "ƘƙᴋᶄⱩⱪꝀꝁꝂꝃꝄꝅꞢꞣ🅚🅺🇰ĸкКκΚᏦꓗⲕⲔ",
    "l": "ŁłƚȴȽɫɬɭʟᴌᶅⱠⱡⱢꝈꝉꞎꞭꬷꬸꬹ𝼄𝼑𝼓🅛🅻🇱ǀԼᏞꓡᒪ",
    "m": "ɱᴍᵯᶆⱮꬺ🅜🅼🇲мМΜᎷꓟⲙⲘᗰ",
    "n": "ƝƞȠȵɲɳɴᵰᶇꞐꞑꞤꞥꬻ🅝🅽🇳ŋŊոՈΝηռꓠⲛⲚ",
    "o": "ØøƟɵᴏᴑᴓⱺꝊꝋꝌꝍꬽꬾ𝼛🅞🅾🇴ɔƆоОοΟσօՕⲟⲞꓳᝪ",
    "p": "ƤƥᴘᵱᵽᶈⱣꝐꝑꝒꝓꝔꝕ🅟🅿🆊🇵рРρΡբᏢꓑⲣⲢᑭ",
    "q": "ɋʠꝖꝗꝘꝙꞯ🅠🆀🇶ԛԚզⵕ",
    "r": "ɌɍɼɽɾʀᵲᵳᶉⱤꞂꞃꞦꞧꭆꭉꭋꭌ𝼖🅡🆁🇷ꭇꭈᎡꓣᖇ",
    "s": "ȿʂᵴᶊẜẝⱾꜱꞄꞅꞨꞩꟅꟉꟊ𝼞🅢🆂🇸ƧƨѕЅՏᏚꓢ𐊖",
    "t": "ŦŧƫƬƭƮȶȾʈᴛᵵⱦꞆꞇ𝼉🅣🆃🇹тТτΤᎢꓔⲧⲦ",
    "u": "ᴜᴝᶙꞸꞹꭎꭒ🅤🆄🇺ʉɄʊƱՍυμսꓴᑌ",
    "v": "ƲʋᴠᶌỼỽⱱⱴꝞꝟ🅥🆅🇻ʌɅѵѴνᏙꓦᐯ",
    "w": "ᴡⱲⱳ🅦🆆🇼ԝԜѡωᎳꓪᗯ",
    "x": "ᶍꭖꭗꭘꭙ🅧🆇🇽хХχΧꓫⲭⲬ᙭",
    "y": "ƳƴɎɏʏỾỿꭚ🅨🆈🇾уУүҮΥγᎩꓬⲩⲨ",
    "z": "ƵƶȤȥɀʐʑᴢᵶᶎⱫⱬⱿꟆ🅩🆉🇿ʒƷΖᏃꓜ",
}

# Told apart at a glance, and still read as the letter in the middle of a word.
STYLISED = {
    "a": "Δλ∆Λ",
    "b": "βб",
    "c": "¢ҁ",
    "d": "∂",
    "e": "єЄξΞ∑Σэҽ",
    "h": "ђ",
    "k": "ҝ",
    "n": "пиИПղՌᑎ∩",
    "o": "θΘөӨфФ",
    "r": "яЯгᴙ",
    "t": "ͳ",
    "u": "цЦմ∪",
    "w": "шщШЩ",
    "x": "жЖ",
    "y": "ч",
}

# One letter that is written out as two.
WRITTEN_OUT = {"æ": "ae", "Æ": "ae", "œ": "oe", "Œ": "oe", "ɶ": "oe"}
